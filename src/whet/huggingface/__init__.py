"""The names that people know from the Hugging Face course: the library's own, faster where nothing else changes."""
