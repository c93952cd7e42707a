"""The names that people know from the Hugging Face course, thin, over whet's one engine."""
