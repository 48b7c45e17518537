//! Paired comparisons that survive a noisy machine.
