"""For GPUs: an engine of CUDA graphs, a store of a buffer's frames, TF32 and bfloat16, and a copy to act on the CPU."""

ENGINES = {"cuda_graph": "cuda_graph_engine:CudaGraphEngine"}
NAMES = {"engine.DeviceFrames": "device_frames:DeviceFrames"}
PRECISIONS = {"tf32": "lower_precision:Tf32", "bf16": "lower_precision:Bfloat16"}
ACT_ON = {"cpu": "cpu_copy:copy_for"}
