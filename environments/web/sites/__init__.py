"""The sites. A site is generated from a seed and served inside the process. Each episode has its own site."""
