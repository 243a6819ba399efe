"""CUDA graphs of whole updates and of acting: an engine for CUDA."""

ENGINES = {"cuda_graph": "cuda_graph_engine:CudaGraphEngine"}
