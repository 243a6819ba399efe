"""Memory of earlier observations: LSTM, GRU and a transformer in a policy's networks, which learn from sequences.

Added by an encoder with a state, which the option `recurrent` of networks and policies selects.
"""

NAMES = {
    "Sequences": "sequences:Sequences",
    "buffer.SequenceBatch": "sequences:SequenceBatch",
    "buffer.Sequences": "sequences:Sequences",
    "buffer.sample_sequences": "sequences:sample_sequences",
    "nets.CausalTransformer": "memories:CausalTransformer",
    "nets.GRU": "memories:GRU",
    "nets.LSTM": "memories:LSTM",
    "nets.Memory": "memories:Memory",
}
ENCODERS = {"recurrent": "encoder:RecurrentEncoder"}
