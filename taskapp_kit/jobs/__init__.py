"""Training jobs: `client` contains the client and the configs of jobs, and `server` a backend that runs jobs."""
