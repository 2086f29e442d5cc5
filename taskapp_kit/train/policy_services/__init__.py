"""A job's sampler replicas and its update as services, in processes on this machine or in actors on a Ray cluster.

The trainer's process runs the gateway and the driver. Service calls transfer training rows and replies. A directory
that all processes share transfers weights.
"""
