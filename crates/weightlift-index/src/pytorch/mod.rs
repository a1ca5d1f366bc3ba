//! PyTorch checkpoints in ZIP archives.
