//! Behaviour of whole epochs.
