"""Trains a policy with the rollouts of a task app: `job_driver.JobDriver`.

driver_settings  deadlines, limits, how turns become rows; the order of iterations and evaluations
reachability     one turn before the job
sources          the environments of a job; waits for a task app that does not answer
rollouts         one rollout as attempts at the gateway; stragglers; detects stalls
reports          events, metric points and latest metrics
checkpoints      the interfaces of a learner and of a job's checkpoints
learning         the learner and the checkpoints with torch
stored_units     iterations of stored rollouts
job_driver       iterations from the first evaluation to the end
"""
