"""__app_title__: task apps that others install and serve by name."""
