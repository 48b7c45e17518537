//! The state of an epoch, for checkpoints: enough to go on with exactly the batches that would have
//! come.
//!
//! All orders follow from the seed, so a state only has what was yielded: for each half-chunk the
//! runs of positions that are unread. Kilobytes for a million items. If the epoch was resharded, it
//! also has what was left then.
//!
//! **Format** (little-endian; a varint has seven bits per byte): magic `forebay sampler` and
//! version, length of the body, body, checksum ([`super::envelope`]). Version 2 has a window of
//! packs. States without one are of version 1, which older forebays read. Body:
//!
//! - dataset id; fingerprint of the half-chunk map (8 bytes);
//! - the plan: seed, epoch (8 each), rank, world, batch, over-ask, window (4 each), a byte for the
//!   ending and one for like lengths; in version 2 the window of packs (4);
//! - stage (4); batches yielded (8);
//! - a byte: 0; or 2 if resharded; each followed by the sets; or 1 and the fingerprint of a
//!   recording (8).
//!
//! Sets: number of half-chunks (varint), with 2 what was divided of each, and then what is unread
//! of each. A set: number of positions (varint) and a byte. With 0 follow the number of lengths
//! (varint) and alternating lengths of gaps and runs (varints); with 1 a bit for each position.

use super::{
    Ending, EpochPlan,
    envelope::{Body, Format, FormatError, push_varint},
    run_set::RunSet,
};
use crate::DatasetId;

const FORMAT: Format = Format { name: "state", magic: *b"forebay sampler", version: 2 };

const DRAWN: u8 = 0;
const REPLAYED: u8 = 1;
const RESHARDED: u8 = 2;
const AS_RUNS: u8 = 0;
const AS_BITS: u8 = 1;

/// Progress of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplerState {
    pub(super) of: DataIdentity,
    pub(super) plan: EpochPlan,
    /// How often the epoch was resharded.
    pub(super) stage: u32,
    /// Batches that were yielded since.
    pub(super) yielded: u64,
    pub(super) progress: Progress,
}

/// The data that a state or a recording is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DataIdentity {
    pub(super) dataset: DatasetId,
    pub(super) map: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    Drawn {
        /// If the epoch was resharded: what was divided, of each half-chunk's order.
        base: Option<Vec<RunSet>>,
        /// What is unread of each half-chunk's items of this rank.
        unread: Vec<RunSet>,
    },
    /// The number of batches is enough, and the fingerprint of the recording.
    Replayed { recording: u64 },
}

impl SamplerState {
    /// The plan of the epoch.
    pub fn plan(&self) -> EpochPlan {
        self.plan
    }

    /// Batches yielded since the epoch began or was last resharded.
    pub fn yielded(&self) -> u64 {
        self.yielded
    }

    /// Encoded.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        self.of.encode(&mut body);
        encode_plan(&self.plan, &mut body);
        body.extend_from_slice(&self.stage.to_le_bytes());
        body.extend_from_slice(&self.yielded.to_le_bytes());
        match &self.progress {
            Progress::Drawn { base, unread } => {
                body.push(if base.is_some() { RESHARDED } else { DRAWN });
                push_varint(
                    &mut body,
                    u32::try_from(unread.len()).expect("at most HALF_CHUNKS_MAX"),
                );
                let base = base.iter().flatten();
                base.chain(unread).for_each(|runs| encode_runs(runs, &mut body));
            }
            Progress::Replayed { recording } => {
                body.push(REPLAYED);
                body.extend_from_slice(&recording.to_le_bytes());
            }
        }
        FORMAT.seal(plan_version(&self.plan), &body)
    }

    /// Decodes what [`SamplerState::encode`] wrote. Making a sampler of it checks that it is of the
    /// same dataset.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = FORMAT.open(bytes)?;
        let of = DataIdentity::decode(&mut body)?;
        let plan = decode_plan(&mut body)?;
        let (stage, yielded) = (body.u32()?, body.u64()?);
        let progress = match body.byte()? {
            REPLAYED => Progress::Replayed { recording: body.u64()? },
            kind @ (DRAWN | RESHARDED) => {
                let half_chunks = body.count()?;
                let mut sets = || -> Result<Vec<RunSet>, FormatError> {
                    (0..half_chunks).map(|_| decode_runs(&mut body)).collect()
                };
                let base = if kind == RESHARDED { Some(sets()?) } else { None };
                Progress::Drawn { base, unread: sets()? }
            }
            _ => return Err(body.damaged()),
        };
        body.end()?;
        Ok(Self { of, plan, stage, yielded, progress })
    }
}

impl DataIdentity {
    pub(super) fn encode(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(self.dataset.as_bytes());
        body.extend_from_slice(&self.map.to_le_bytes());
    }

    pub(super) fn decode(body: &mut Body<'_>) -> Result<Self, FormatError> {
        Ok(Self { dataset: DatasetId::from_bytes(body.array()?), map: body.u64()? })
    }
}

/// The version of a format that has this plan.
pub(super) fn plan_version(plan: &EpochPlan) -> u8 {
    if plan.pack_window == 0 { 1 } else { 2 }
}

pub(super) fn encode_plan(plan: &EpochPlan, body: &mut Vec<u8>) {
    let EpochPlan { seed, epoch, rank, world, batch, ending, .. } = *plan;
    let EpochPlan { over_ask, window, like_length, pack_window, .. } = *plan;
    body.extend([seed, epoch].iter().flat_map(|word| word.to_le_bytes()));
    let words = [rank, world, batch, over_ask, window];
    body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    body.push(u8::from(ending == Ending::DropLast));
    body.push(u8::from(like_length));
    if pack_window > 0 {
        body.extend(pack_window.to_le_bytes());
    }
}

pub(super) fn decode_plan(body: &mut Body<'_>) -> Result<EpochPlan, FormatError> {
    let (seed, epoch) = (body.u64()?, body.u64()?);
    let (rank, world, batch) = (body.u32()?, body.u32()?, body.u32()?);
    let (over_ask, window) = (body.u32()?, body.u32()?);
    let mut flag = || match body.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(body.damaged()),
    };
    let ending = if flag()? { Ending::DropLast } else { Ending::Pad };
    let like_length = flag()?;
    let pack_window = if body.version() == 1 { 0 } else { body.u32()? };
    let plan = EpochPlan {
        seed,
        epoch,
        rank,
        world,
        batch,
        ending,
        over_ask,
        window,
        like_length,
        pack_window,
    };
    let is_valid = plan.check().is_ok() && plan_version(&plan) == body.version();
    if is_valid { Ok(plan) } else { Err(body.damaged()) }
}

fn encode_runs(runs: &RunSet, body: &mut Vec<u8>) {
    push_varint(body, runs.length());
    let mut lengths = Vec::new();
    let count = runs.lengths().map(|length| push_varint(&mut lengths, length)).count();
    let bits = runs.length().div_ceil(8) as usize;
    if lengths.len() <= bits + 4 {
        body.push(AS_RUNS);
        push_varint(body, u32::try_from(count).expect("fewer runs than positions"));
        body.extend_from_slice(&lengths);
    } else {
        body.push(AS_BITS);
        let start = body.len();
        body.resize(start + bits, 0);
        for position in runs.iter().flatten() {
            body[start + position as usize / 8] |= 1 << (position % 8);
        }
    }
}

fn decode_runs(body: &mut Body<'_>) -> Result<RunSet, FormatError> {
    let length = body.varint()?;
    match body.byte()? {
        AS_RUNS => {
            let count = body.count()?;
            let lengths = (0..count).map(|_| body.varint()).collect::<Result<Vec<_>, _>>()?;
            let even = count % 2 == 0;
            RunSet::from_lengths(length, lengths).filter(|_| even).ok_or_else(|| body.damaged())
        }
        AS_BITS => {
            let bits = body.slice(length.div_ceil(8) as usize)?;
            let set = |position: &u32| bits[*position as usize / 8] >> (position % 8) & 1 == 1;
            let beyond = length..u32::try_from(bits.len() as u64 * 8).unwrap_or(length);
            if beyond.clone().any(|position| set(&position)) {
                return Err(body.damaged());
            }
            Ok(RunSet::new(length, (0..length).filter(set)))
        }
        _ => Err(body.damaged()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sets() -> impl Strategy<Value = Vec<RunSet>> {
        let set = (proptest::collection::vec(any::<bool>(), 0..300), 0_u32..2).prop_map(
            |(mut bits, sparse)| {
                if sparse == 1 {
                    bits.iter_mut().enumerate().for_each(|(at, bit)| *bit &= at % 50 == 0);
                }
                let positions =
                    (0_u32..).zip(&bits).filter(|(_, bit)| **bit).map(|(position, _)| position);
                RunSet::new(u32::try_from(bits.len()).unwrap(), positions)
            },
        );
        proptest::collection::vec(set, 3)
    }

    fn state(progress: Progress) -> SamplerState {
        let of = DataIdentity { dataset: DatasetId::from_bytes([7; 32]), map: 11 };
        let plan = EpochPlan { like_length: true, ..EpochPlan::new(1, 2, 3).on(4, 5) };
        SamplerState { of, plan, stage: 1, yielded: 9, progress }
    }

    proptest! {
        #[test]
        fn bytes_say_all(base in proptest::option::of(sets()), unread in sets()) {
            let state = state(Progress::Drawn { base, unread });
            prop_assert_eq!(SamplerState::decode(&state.encode()), Ok(state));
        }

        /// Promise 6: a count from outside allocates no more than there are bytes.
        #[test]
        fn any_body_is_refused_or_understood(
            mut body in proptest::collection::vec(any::<u8>(), 0..80),
            keep in 0_usize..120,
        ) {
            let unread = vec![RunSet::new(99, 3..70)];
            let whole = state(Progress::Drawn { base: None, unread }).encode();
            let mut bytes = whole[24..whole.len() - 8].to_vec();
            bytes.truncate(keep);
            bytes.append(&mut body);
            for version in [1, 2] {
                if let Ok(state) = SamplerState::decode(&FORMAT.seal(version, &bytes)) {
                    prop_assert_eq!(SamplerState::decode(&state.encode()), Ok(state));
                }
            }
        }
    }

    #[test]
    fn replays_have_states_as_well() {
        let state = state(Progress::Replayed { recording: 77 });
        assert_eq!(SamplerState::decode(&state.encode()), Ok(state));
    }

    /// A plan with a window of packs has four bytes more, and is of version 2.
    #[test]
    fn windows_of_packs_are_version_two() {
        let mut state = state(Progress::Drawn { base: None, unread: Vec::new() });
        let plain = state.encode();
        state.plan.pack_window = 85;
        let bytes = state.encode();
        assert_eq!((plain[15], bytes[15], bytes.len()), (1, 2, plain.len() + 4));
        assert_eq!(bytes[24 + 32 + 24 + 20 + 2..][..4], 85_u32.to_le_bytes());
        assert_eq!(SamplerState::decode(&bytes), Ok(state));
    }

    /// Version 1. A change of these bytes is a new version.
    #[test]
    fn the_format_is_what_it_was() {
        let unread =
            vec![RunSet::new(5, 1..3), RunSet::new(100, (0..100).filter(|at| at % 2 == 1))];
        let bytes = state(Progress::Drawn { base: None, unread }).encode();
        let mut expected = b"forebay sampler\x01".to_vec();
        expected.extend(112_u64.to_le_bytes());
        expected.extend([7; 32]);
        expected.extend([11_u64, 1, 2].iter().flat_map(|word| word.to_le_bytes()));
        expected.extend([4_u32, 5, 3, 10, 2048].iter().flat_map(|word| word.to_le_bytes()));
        expected.extend([0, 1]);
        expected.extend(1_u32.to_le_bytes());
        expected.extend(9_u64.to_le_bytes());
        expected.extend([0, 2, 5, 0, 2, 1, 2, 100, 1]);
        expected.extend([0xaa; 12]);
        expected.push(0x0a);
        assert_eq!(bytes[..bytes.len() - 8], expected);
    }
}
