"""whet sharpens a pretrained transformer on your labelled text."""

__version__ = "0.1.0"
