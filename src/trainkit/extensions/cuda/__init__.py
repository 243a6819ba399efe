"""CUDA graphs of updates and of acting, an engine; images of a replay buffer on the device, a store of its frames."""

ENGINES = {"cuda_graph": "cuda_graph_engine:CudaGraphEngine"}
NAMES = {"engine.DeviceFrames": "device_frames:DeviceFrames"}
