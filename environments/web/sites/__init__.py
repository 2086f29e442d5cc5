"""The sites, each made from a seed and served inside the process; a site's state lives inside one episode."""
