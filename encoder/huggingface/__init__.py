"""Both ways between this encoder and Hugging Face folders; the only room that knows transformers."""
