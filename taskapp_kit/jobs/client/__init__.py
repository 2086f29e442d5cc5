"""The client of training jobs: `RLJob`, the backend's client, and the configs of jobs."""
