//! A node over a real socket and a real directory, spoken to by the real client.

mod harness;
mod hostile;
mod managing;
mod opening;
mod presence;
mod pressure;
mod sharing;
mod storing;
