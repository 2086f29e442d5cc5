"""A job's sampler replicas and its update as services: processes of this machine, or actors of a Ray cluster.

The trainer's own process has the gateway and the driver. Rows and answers travel in calls; weights go through a folder.
"""
