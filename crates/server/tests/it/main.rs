//! A node over a real socket and a real directory, spoken to by the real client.

mod harness;
mod hostile;
mod managing;
mod opening;
mod pressure;
mod segments;
mod sharing;
mod storing;
