"""Trains a policy with rollouts on a task app: `job_driver.JobDriver`.

driver_settings  deadlines, limits, options for training rows, and the order of iterations and evaluations
reachability     a test rollout of one turn before the job
sources          the environments of a job, and waiting for a task app that does not respond
rollouts         attempts at rollouts, stragglers, and the detection of stalls
reports          events, metric points and latest metrics
interfaces       the interfaces of a learner and of a job's checkpoints
learning         the learner and the checkpoints with torch
stored_units     iterations of stored rollouts
job_driver       iterations from the first evaluation to the end
"""
