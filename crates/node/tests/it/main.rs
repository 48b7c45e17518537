//! A node over a real socket and a real directory, spoken to by the real client.

mod authority;
mod certificates;
mod harness;
mod hostile;
mod managing;
mod neighbours;
mod opening;
mod picking;
mod presence;
mod pressure;
mod segments;
mod sharing;
mod silence;
mod storing;
mod strangers;
mod town;
