//! Codec of cluster messages (`forebay_core::cluster::replication`).
//!
//! **Invariant:** decoded times are finite and not negative, and decoded names are valid. `core`
//! relies on both.

use std::time::Duration;

use forebay_core::{
    ByteSize, DatasetId, HalfChunk, NodeName,
    cluster::replication::{KeepSet, LeaderView, Reply, Request, Term},
    train::placement::{Allocation, DatasetDemand, JobDemand, ModeTimes, Share},
};

use crate::{
    HALF_CHUNKS_MAX,
    codec::{Malformed, Reader, Writer},
};

/// Most datasets that one node manages.
const DATASETS_MAX: usize = 1 << 10;
/// Most jobs of one dataset in a message. Further ones are left out.
const JOBS_MAX: usize = 128;
/// Longest job name in a message. Longer names are cut: they are for display only.
const NAME_SIZE_MAX: usize = 64;
/// Highest number of a term. Counting from 0 does not reach it; a forged number must not end the
/// count.
const NUMBER_MAX: u64 = 1 << 48;

const SPACE_REQUEST_SIZE_MIN: usize = 32 + 4 + 3 * 8 + 4 + 4 + 5;
const SHARE_SIZE_MIN: usize = 32 + 5 + 8 + 8 + 2;

pub(crate) fn write_request(request: &Request, to: &mut Writer<'_>) {
    match request {
        Request::Ping => to.u8(0),
        Request::Query { dataset } => {
            to.u8(1);
            to.bytes(dataset.as_bytes());
        }
        Request::Replicate { dataset, keep_set } => {
            to.u8(2);
            to.bytes(dataset.as_bytes());
            write_term(&keep_set.term, to);
            to.u64(keep_set.version);
            to.list(HALF_CHUNKS_MAX, &keep_set.kept, |to, half_chunk| to.u32(half_chunk.0));
        }
        Request::SpaceRequest { known, requests } => {
            to.u8(3);
            to.u8(known.is_some().into());
            if let Some(term) = known {
                write_term(term, to);
            }
            let requests = &requests[..requests.len().min(DATASETS_MAX)];
            to.list(DATASETS_MAX, requests, |to, (dataset, demand)| {
                to.bytes(dataset.as_bytes());
                write_space_request(demand, to);
            });
        }
    }
}

pub(crate) fn read_request(from: &mut Reader<'_>) -> Result<Request, Malformed> {
    Ok(match from.u8()? {
        0 => Request::Ping,
        1 => Request::Query { dataset: from.dataset()? },
        2 => Request::Replicate {
            dataset: from.dataset()?,
            keep_set: KeepSet {
                term: read_term(from)?,
                version: from.u64()?,
                kept: ascending(from.list(HALF_CHUNKS_MAX, 4, Reader::half_chunk)?)?,
            },
        },
        3 => Request::SpaceRequest {
            known: if from.flag()? { Some(read_term(from)?) } else { None },
            requests: from.list(DATASETS_MAX, SPACE_REQUEST_SIZE_MIN, |from| {
                Ok((from.dataset()?, read_space_request(from)?))
            })?,
        },
        _ => return Err(Malformed::Value),
    })
}

pub(crate) fn write_reply(reply: &Reply, to: &mut Writer<'_>) {
    match reply {
        Reply::Alive => to.u8(0),
        Reply::Follows { dataset, leader, found } => {
            to.u8(1);
            to.bytes(dataset.as_bytes());
            to.u8(leader.is_some().into());
            if let Some(leader) = leader {
                write_leader_view(leader, to);
            }
            to.list(HALF_CHUNKS_MAX, found, |to, half_chunk| to.u32(half_chunk.0));
        }
        Reply::Applied { dataset, term, version, arrived } => {
            to.u8(2);
            to.bytes(dataset.as_bytes());
            write_term(term, to);
            to.u64(*version);
            to.list(HALF_CHUNKS_MAX, arrived, |to, arrived| {
                to.u32(arrived.half_chunk.0);
                to.u64(arrived.bytes.0);
            });
        }
        Reply::Stale { dataset, term, leader } => {
            to.u8(3);
            to.bytes(dataset.as_bytes());
            write_term(term, to);
            write_leader_view(leader, to);
        }
        Reply::Shares { term, shares } => {
            to.u8(4);
            write_term(term, to);
            to.list(DATASETS_MAX, shares, |to, (dataset, share)| {
                to.bytes(dataset.as_bytes());
                write_allocation(share.allocation, to);
                to.u64(share.space.0);
                to.u64(share.gpus_saved.to_bits());
                to.text(&share.why);
            });
        }
    }
}

pub(crate) fn read_reply(from: &mut Reader<'_>) -> Result<Reply, Malformed> {
    Ok(match from.u8()? {
        0 => Reply::Alive,
        1 => Reply::Follows {
            dataset: from.dataset()?,
            leader: if from.flag()? { Some(read_leader_view(from)?) } else { None },
            found: from.list(HALF_CHUNKS_MAX, 4, Reader::half_chunk)?,
        },
        2 => Reply::Applied {
            dataset: from.dataset()?,
            term: read_term(from)?,
            version: from.u64()?,
            arrived: from.list(HALF_CHUNKS_MAX, 12, Reader::half_chunk_bytes)?,
        },
        3 => Reply::Stale {
            dataset: from.dataset()?,
            term: read_term(from)?,
            leader: read_leader_view(from)?,
        },
        4 => Reply::Shares {
            term: read_term(from)?,
            shares: from.list(DATASETS_MAX, SHARE_SIZE_MIN, read_share)?,
        },
        _ => return Err(Malformed::Value),
    })
}

fn write_term(term: &Term, to: &mut Writer<'_>) {
    to.u64(term.number);
    to.text(term.manager.as_str());
    to.u64(term.incarnation);
}

fn read_term(from: &mut Reader<'_>) -> Result<Term, Malformed> {
    let number = from.u64()?;
    if number > NUMBER_MAX {
        return Err(Malformed::OverLimit);
    }
    let manager: NodeName = from.text()?.parse().map_err(|_| Malformed::Value)?;
    Ok(Term { number, manager, incarnation: from.u64()? })
}

fn write_leader_view(leader: &LeaderView, to: &mut Writer<'_>) {
    write_term(&leader.term, to);
    to.u64(u64::try_from(leader.silent_for.as_millis()).unwrap_or(u64::MAX));
}

fn read_leader_view(from: &mut Reader<'_>) -> Result<LeaderView, Malformed> {
    Ok(LeaderView { term: read_term(from)?, silent_for: Duration::from_millis(from.u64()?) })
}

fn write_allocation(allocation: Allocation, to: &mut Writer<'_>) {
    let (kind, chunks) = match allocation {
        Allocation::Nothing => (0, 0),
        Allocation::Halves => (1, 0),
        Allocation::Chunks(chunks) => (2, chunks),
    };
    to.u8(kind);
    to.u32(chunks);
}

fn read_allocation(from: &mut Reader<'_>) -> Result<Allocation, Malformed> {
    match (from.u8()?, from.u32()?) {
        (0, 0) => Ok(Allocation::Nothing),
        (1, 0) => Ok(Allocation::Halves),
        (2, chunks) => Ok(Allocation::Chunks(chunks)),
        _ => Err(Malformed::Value),
    }
}

fn write_space_request(demand: &DatasetDemand, to: &mut Writer<'_>) {
    to.u32(demand.chunks);
    for size in [demand.chunk_size, demand.half_size, demand.total] {
        to.u64(size.0);
    }
    to.list(JOBS_MAX, &demand.jobs[..demand.jobs.len().min(JOBS_MAX)], |to, job| {
        to.text(truncated(&job.name));
        to.u32(job.gpus);
        to.u8(job.times.is_some().into());
        if let Some(times) = &job.times {
            for time in [times.hit, times.rotating, times.miss] {
                to.u64(time.to_bits());
            }
        }
    });
    to.list(
        JOBS_MAX,
        &demand.compute_bound[..demand.compute_bound.len().min(JOBS_MAX)],
        |to, name| {
            to.text(truncated(name));
        },
    );
    write_allocation(demand.allocated, to);
    to.u32(demand.chunks_present);
    to.u64(u64::try_from(demand.idle_for.as_millis()).unwrap_or(u64::MAX));
}

fn read_space_request(from: &mut Reader<'_>) -> Result<DatasetDemand, Malformed> {
    let chunks = from.u32()?;
    let mut size = || from.u64().map(ByteSize);
    let (chunk_size, half_size, total) = (size()?, size()?, size()?);
    Ok(DatasetDemand {
        chunks,
        chunk_size,
        half_size,
        total,
        jobs: from.list(JOBS_MAX, 2 + 4 + 1, |from| {
            Ok(JobDemand {
                name: from.text()?,
                gpus: from.u32()?,
                times: if from.flag()? {
                    let [hit, rotating, miss] = [number(from)?, number(from)?, number(from)?];
                    Some(ModeTimes { hit, rotating, miss })
                } else {
                    None
                },
            })
        })?,
        compute_bound: from.list(JOBS_MAX, 2, Reader::text)?,
        allocated: read_allocation(from)?,
        chunks_present: from.u32()?,
        idle_for: Duration::from_millis(from.u64()?),
    })
}

fn read_share(from: &mut Reader<'_>) -> Result<(DatasetId, Share), Malformed> {
    let dataset = from.dataset()?;
    let allocation = read_allocation(from)?;
    let space = ByteSize(from.u64()?);
    let gpus_saved = number(from)?;
    Ok((dataset, Share { allocation, space, gpus_saved, why: from.text()? }))
}

/// A finite number that is not negative.
fn number(from: &mut Reader<'_>) -> Result<f64, Malformed> {
    let number = f64::from_bits(from.u64()?);
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err(Malformed::Value) }
}

fn ascending(half_chunks: Vec<HalfChunk>) -> Result<Vec<HalfChunk>, Malformed> {
    if half_chunks.is_sorted_by(|a, b| a < b) { Ok(half_chunks) } else { Err(Malformed::Value) }
}

fn truncated(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_SIZE_MAX)]
}
