"""The numbers, names and texts of CUDA's errors, as cupy prints them."""

from __future__ import annotations

RUNTIME = {
    1: "cudaErrorInvalidValue: invalid argument",
    2: "cudaErrorMemoryAllocation: out of memory",
    21: "cudaErrorInvalidMemcpyDirection: invalid copy direction for memcpy",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    101: "cudaErrorInvalidDevice: invalid device ordinal",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    600: "cudaErrorNotReady: device not ready",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    704: "cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled",
    900: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
    901: "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error during "
    "capture",
}
DRIVER = {
    1: "CUDA_ERROR_INVALID_VALUE: invalid argument",
    200: "CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device",
    500: "CUDA_ERROR_NOT_FOUND: named symbol not found",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch",
}
NVRTC = {
    3: "NVRTC_ERROR_INVALID_INPUT (3)",
    4: "NVRTC_ERROR_INVALID_PROGRAM (4)",
    5: "NVRTC_ERROR_INVALID_OPTION (5)",
    6: "NVRTC_ERROR_COMPILATION (6)",
}
CUBLAS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
}
