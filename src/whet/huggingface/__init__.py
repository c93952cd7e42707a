"""The names of the Hugging Face course: the library's own classes, faster where nothing else changes."""
