//! What nodes say to each other about who manages what (`forebay_core::council`), field by field.
//!
//! **Invariant:** times are numbers that can be reckoned with, and names are names: whatever is not is refused
//! here, so that nobody behind this has to doubt them.

use std::time::Duration;

use forebay_core::{
    ByteSize, DatasetId, NodeName,
    council::{Places, Reply, Request, Standing, Term},
    placement::{Choice, Dataset, Job, Share, Times},
};

use crate::{
    PIECES_MAX,
    codec::{Malformed, Reader, Writer},
};

/// No node manages more datasets.
const DATASETS_MAX: usize = 1 << 10;
/// Of one dataset's jobs no more are told: the first of them, which gain.
const JOBS_MAX: usize = 128;
/// Names of jobs are for people to read, and are cut.
const NAME_SIZE_MAX: usize = 64;
/// No term that was honestly counted has a higher number.
const NUMBER_MAX: u64 = 1 << 48;

const WISH_SIZE_MIN: usize = 32 + 4 + 3 * 8 + 4 + 4 + 5;
const SHARE_SIZE_MIN: usize = 32 + 5 + 8 + 8 + 2;

pub(crate) fn write_request(request: &Request, to: &mut Writer<'_>) {
    match request {
        Request::Greet => to.u8(0),
        Request::Ask { dataset } => {
            to.u8(1);
            to.bytes(dataset.as_bytes());
        }
        Request::Tell { dataset, places } => {
            to.u8(2);
            to.bytes(dataset.as_bytes());
            write_term(&places.term, to);
            to.u64(places.version);
            to.list(PIECES_MAX, &places.kept, |to, piece| to.u32(*piece));
        }
        Request::Wish { known, wishes } => {
            to.u8(3);
            to.u8(known.is_some().into());
            if let Some(term) = known {
                write_term(term, to);
            }
            let wishes = &wishes[..wishes.len().min(DATASETS_MAX)];
            to.list(DATASETS_MAX, wishes, |to, (dataset, wish)| {
                to.bytes(dataset.as_bytes());
                write_wish(wish, to);
            });
        }
    }
}

pub(crate) fn read_request(from: &mut Reader<'_>) -> Result<Request, Malformed> {
    Ok(match from.u8()? {
        0 => Request::Greet,
        1 => Request::Ask { dataset: from.dataset()? },
        2 => Request::Tell {
            dataset: from.dataset()?,
            places: Places {
                term: read_term(from)?,
                version: from.u64()?,
                kept: ascending(from.list(PIECES_MAX, 4, Reader::u32)?)?,
            },
        },
        3 => Request::Wish {
            known: if from.flag()? { Some(read_term(from)?) } else { None },
            wishes: from.list(DATASETS_MAX, WISH_SIZE_MIN, |from| {
                Ok((from.dataset()?, read_wish(from)?))
            })?,
        },
        _ => return Err(Malformed::Value),
    })
}

pub(crate) fn write_reply(reply: &Reply, to: &mut Writer<'_>) {
    match reply {
        Reply::Greeted => to.u8(0),
        Reply::Obeys { dataset, standing, found } => {
            to.u8(1);
            to.bytes(dataset.as_bytes());
            to.u8(standing.is_some().into());
            if let Some(standing) = standing {
                write_standing(standing, to);
            }
            to.list(PIECES_MAX, found, |to, piece| to.u32(*piece));
        }
        Reply::Obeyed { dataset, term, version, arrived } => {
            to.u8(2);
            to.bytes(dataset.as_bytes());
            write_term(term, to);
            to.u64(*version);
            to.list(PIECES_MAX, arrived, |to, (piece, bytes)| {
                to.u32(*piece);
                to.u64(bytes.0);
            });
        }
        Reply::Refused { dataset, term, standing } => {
            to.u8(3);
            to.bytes(dataset.as_bytes());
            write_term(term, to);
            write_standing(standing, to);
        }
        Reply::Shares { term, shares } => {
            to.u8(4);
            write_term(term, to);
            to.list(DATASETS_MAX, shares, |to, (dataset, share)| {
                to.bytes(dataset.as_bytes());
                write_choice(share.choice, to);
                to.u64(share.space.0);
                to.u64(share.gpus_saved.to_bits());
                to.text(&share.why);
            });
        }
    }
}

pub(crate) fn read_reply(from: &mut Reader<'_>) -> Result<Reply, Malformed> {
    Ok(match from.u8()? {
        0 => Reply::Greeted,
        1 => Reply::Obeys {
            dataset: from.dataset()?,
            standing: if from.flag()? { Some(read_standing(from)?) } else { None },
            found: from.list(PIECES_MAX, 4, Reader::u32)?,
        },
        2 => Reply::Obeyed {
            dataset: from.dataset()?,
            term: read_term(from)?,
            version: from.u64()?,
            arrived: from.list(PIECES_MAX, 12, |from| Ok((from.u32()?, ByteSize(from.u64()?))))?,
        },
        3 => Reply::Refused {
            dataset: from.dataset()?,
            term: read_term(from)?,
            standing: read_standing(from)?,
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
    to.u64(term.life);
}

fn read_term(from: &mut Reader<'_>) -> Result<Term, Malformed> {
    let number = from.u64()?;
    if number > NUMBER_MAX {
        return Err(Malformed::OverLimit);
    }
    let manager: NodeName = from.text()?.parse().map_err(|_| Malformed::Value)?;
    Ok(Term { number, manager, life: from.u64()? })
}

fn write_standing(standing: &Standing, to: &mut Writer<'_>) {
    write_term(&standing.term, to);
    to.u64(u64::try_from(standing.silent_for.as_millis()).unwrap_or(u64::MAX));
}

fn read_standing(from: &mut Reader<'_>) -> Result<Standing, Malformed> {
    Ok(Standing { term: read_term(from)?, silent_for: Duration::from_millis(from.u64()?) })
}

fn write_choice(choice: Choice, to: &mut Writer<'_>) {
    let (kind, chunks) = match choice {
        Choice::Nothing => (0, 0),
        Choice::Halves => (1, 0),
        Choice::Chunks(chunks) => (2, chunks),
    };
    to.u8(kind);
    to.u32(chunks);
}

fn read_choice(from: &mut Reader<'_>) -> Result<Choice, Malformed> {
    match (from.u8()?, from.u32()?) {
        (0, 0) => Ok(Choice::Nothing),
        (1, 0) => Ok(Choice::Halves),
        (2, chunks) => Ok(Choice::Chunks(chunks)),
        _ => Err(Malformed::Value),
    }
}

fn write_wish(wish: &Dataset, to: &mut Writer<'_>) {
    to.u32(wish.chunks);
    for size in [wish.chunk_size, wish.half_size, wish.total] {
        to.u64(size.0);
    }
    to.list(JOBS_MAX, &wish.jobs[..wish.jobs.len().min(JOBS_MAX)], |to, job| {
        to.text(cut(&job.name));
        to.u32(job.gpus);
        to.u8(job.times.is_some().into());
        if let Some(times) = &job.times {
            for time in [times.hit, times.rotating, times.miss] {
                to.u64(time.to_bits());
            }
        }
    });
    to.list(JOBS_MAX, &wish.others[..wish.others.len().min(JOBS_MAX)], |to, name| {
        to.text(cut(name));
    });
    write_choice(wish.placed, to);
    to.u32(wish.here);
    to.u64(u64::try_from(wish.idle_for.as_millis()).unwrap_or(u64::MAX));
}

fn read_wish(from: &mut Reader<'_>) -> Result<Dataset, Malformed> {
    let chunks = from.u32()?;
    let mut size = || from.u64().map(ByteSize);
    let (chunk_size, half_size, total) = (size()?, size()?, size()?);
    Ok(Dataset {
        chunks,
        chunk_size,
        half_size,
        total,
        jobs: from.list(JOBS_MAX, 2 + 4 + 1, |from| {
            Ok(Job {
                name: from.text()?,
                gpus: from.u32()?,
                times: if from.flag()? {
                    let [hit, rotating, miss] = [number(from)?, number(from)?, number(from)?];
                    Some(Times { hit, rotating, miss })
                } else {
                    None
                },
            })
        })?,
        others: from.list(JOBS_MAX, 2, Reader::text)?,
        placed: read_choice(from)?,
        here: from.u32()?,
        idle_for: Duration::from_millis(from.u64()?),
    })
}

fn read_share(from: &mut Reader<'_>) -> Result<(DatasetId, Share), Malformed> {
    let dataset = from.dataset()?;
    let choice = read_choice(from)?;
    let space = ByteSize(from.u64()?);
    let gpus_saved = number(from)?;
    Ok((dataset, Share { choice, space, gpus_saved, why: from.text()? }))
}

/// A number that is one, and not below nought.
fn number(from: &mut Reader<'_>) -> Result<f64, Malformed> {
    let number = f64::from_bits(from.u64()?);
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err(Malformed::Value) }
}

fn ascending(pieces: Vec<u32>) -> Result<Vec<u32>, Malformed> {
    if pieces.is_sorted_by(|a, b| a < b) { Ok(pieces) } else { Err(Malformed::Value) }
}

fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_SIZE_MAX)]
}
