"""Math as a task app: procedural problems from reasoning-gym, or rows of a file, and one answer that is right or not.

`spelling`, `literals`, `polynomials`, `formula`, `structure` and `equality` are plain Python; `generators` loads the
`reasoning_gym` package; `comparing` runs in another process, where `sympy` computes.
"""
