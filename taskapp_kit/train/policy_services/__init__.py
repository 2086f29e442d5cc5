"""A job's sampler replicas and its update as services, in processes on this machine or in actors on a Ray cluster.

The trainer's process runs the gateway and the driver. Calls transfer rows and replies, and a directory transfers
weights.
"""
