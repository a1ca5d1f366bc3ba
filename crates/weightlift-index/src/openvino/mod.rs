//! The OpenVINO IR.
