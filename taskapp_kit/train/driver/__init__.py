"""Trains a policy with the rollouts of a task app: `job_driver.JobDriver`.

settings         deadlines, limits, how turns become rows; the order of iterations and evaluations
reachability     one turn before the job
sources          the environments of a job; waits for a task app that is away
rollouts         one rollout as attempts at the gateway; stragglers; ends what does not move
reports          events, metric points and latest numbers
checkpoints      the interfaces of what learns from rows, and of what stores a job's checkpoints
learning         the learner and the checkpoints with torch
stored_units     iterations of stored rollouts
job_driver       iterations from the first evaluation to the end
"""
