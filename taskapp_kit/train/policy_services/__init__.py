"""A job's sampler replicas and its update as services: processes of this machine, or actors of a Ray cluster.

The trainer's process has the gateway and the driver. Rows and answers are sent in calls, weights through a directory.
"""
