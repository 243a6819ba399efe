"""Small networks in numpy on the CPU, where torch's calls cost several times the sums they are made for.

`acting` turns observations into actions, `q_learning`, `ppo` and `sac` take a loss apart into gradients; `preprocess`,
`layers`, `passes`, `products`, `tape`, `values`, `squashed` and `rows` are what they stand on. All work on views of
torch's own weights, and hand over to torch whenever something is not as they know it.
"""
