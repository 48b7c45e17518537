//! What a checkpoint keeps of an epoch: enough to go on with exactly the batches that would have come.
//!
//! All orders follow from the seed, so a state only says what was yielded: of each chunk the runs of places
//! that are unread. Kilobytes for a million items. If the epoch was dealt anew, it also says what was left
//! then.
//!
//! **Format** (little-endian; a varint has seven bits a byte): magic `forebay sampler` and version 1, length
//! of the body, body, checksum ([`super::sealed`]). Body: dataset id; fingerprint of the layout (8 bytes); the
//! plan: seed, epoch (8 each), rank, world, batch, over-ask, window (4 each), a byte for the ending and one
//! for like lengths; stage (4); batches yielded (8); then a byte: 0, or 2 when dealt anew, and the sets, or 1
//! and the fingerprint of a recording (8). Sets: how many chunks (varint), with 2 what was dealt of each, and
//! then what is unread of each. A set: how many places (varint), a byte, and with 0 how many lengths
//! (varint) and those of what is not in it and what is, in turn (varints), with 1 a bit for each place.

use super::{
    Ending, Plan,
    runs::Runs,
    sealed::{Body, Format, FormatError, push_varint},
};
use crate::DatasetId;

const FORMAT: Format = Format { name: "state", magic: *b"forebay sampler", version: 1 };

const DRAWN: u8 = 0;
const REPLAYED: u8 = 1;
const DEALT_ANEW: u8 = 2;
const AS_RUNS: u8 = 0;
const AS_BITS: u8 = 1;

/// How far one rank has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub(super) of: Of,
    pub(super) plan: Plan,
    /// How often the epoch was dealt anew.
    pub(super) stage: u32,
    /// Batches that were yielded since.
    pub(super) yielded: u64,
    pub(super) progress: Progress,
}

/// What data a state or a recording is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) dataset: DatasetId,
    pub(super) layout: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    Drawn {
        /// If the epoch was dealt anew: what was dealt, of each chunk's order.
        base: Option<Vec<Runs>>,
        /// What is unread, of each chunk's items of this rank.
        unread: Vec<Runs>,
    },
    /// All that is needed is how many batches; and of what.
    Replayed { recording: u64 },
}

impl State {
    /// How the epoch is drawn.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// Batches yielded, since the epoch began or was last dealt anew.
    pub fn yielded(&self) -> u64 {
        self.yielded
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        self.of.encode(&mut body);
        encode_plan(&self.plan, &mut body);
        body.extend_from_slice(&self.stage.to_le_bytes());
        body.extend_from_slice(&self.yielded.to_le_bytes());
        match &self.progress {
            Progress::Drawn { base, unread } => {
                body.push(if base.is_some() { DEALT_ANEW } else { DRAWN });
                push_varint(&mut body, u32::try_from(unread.len()).expect("few chunks"));
                let base = base.iter().flatten();
                base.chain(unread).for_each(|runs| encode_runs(runs, &mut body));
            }
            Progress::Replayed { recording } => {
                body.push(REPLAYED);
                body.extend_from_slice(&recording.to_le_bytes());
            }
        }
        FORMAT.seal(&body)
    }

    /// From bytes that [`State::encode`] made. Whether they are of the dataset at hand is seen when a
    /// sampler is made of them.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = FORMAT.open(bytes)?;
        let of = Of::decode(&mut body)?;
        let plan = decode_plan(&mut body)?;
        let (stage, yielded) = (body.u32()?, body.u64()?);
        let progress = match body.byte()? {
            REPLAYED => Progress::Replayed { recording: body.u64()? },
            kind @ (DRAWN | DEALT_ANEW) => {
                let chunks = body.count()?;
                let mut sets = || -> Result<Vec<Runs>, FormatError> {
                    (0..chunks).map(|_| decode_runs(&mut body)).collect()
                };
                let base = if kind == DEALT_ANEW { Some(sets()?) } else { None };
                Progress::Drawn { base, unread: sets()? }
            }
            _ => return Err(body.damaged()),
        };
        body.end()?;
        Ok(Self { of, plan, stage, yielded, progress })
    }
}

impl Of {
    pub(super) fn encode(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(self.dataset.as_bytes());
        body.extend_from_slice(&self.layout.to_le_bytes());
    }

    pub(super) fn decode(body: &mut Body<'_>) -> Result<Self, FormatError> {
        Ok(Self { dataset: DatasetId::from_bytes(body.array()?), layout: body.u64()? })
    }
}

pub(super) fn encode_plan(plan: &Plan, body: &mut Vec<u8>) {
    let Plan { seed, epoch, rank, world, batch, ending, over_ask, window, like_length } = *plan;
    body.extend([seed, epoch].iter().flat_map(|word| word.to_le_bytes()));
    let words = [rank, world, batch, over_ask, window];
    body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    body.push(u8::from(ending == Ending::DropLast));
    body.push(u8::from(like_length));
}

pub(super) fn decode_plan(body: &mut Body<'_>) -> Result<Plan, FormatError> {
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
    let plan = Plan { seed, epoch, rank, world, batch, ending, over_ask, window, like_length };
    plan.check().map_err(|_| body.damaged())?;
    Ok(plan)
}

fn encode_runs(runs: &Runs, body: &mut Vec<u8>) {
    push_varint(body, runs.length());
    let mut lengths = Vec::new();
    let count = runs.lengths().map(|length| push_varint(&mut lengths, length)).count();
    let bits = runs.length().div_ceil(8) as usize;
    if lengths.len() <= bits + 4 {
        body.push(AS_RUNS);
        push_varint(body, u32::try_from(count).expect("fewer runs than places"));
        body.extend_from_slice(&lengths);
    } else {
        body.push(AS_BITS);
        let start = body.len();
        body.resize(start + bits, 0);
        for place in runs.iter().flatten() {
            body[start + place as usize / 8] |= 1 << (place % 8);
        }
    }
}

fn decode_runs(body: &mut Body<'_>) -> Result<Runs, FormatError> {
    let length = body.varint()?;
    match body.byte()? {
        AS_RUNS => {
            let count = body.count()?;
            let lengths = (0..count).map(|_| body.varint()).collect::<Result<Vec<_>, _>>()?;
            let even = count % 2 == 0;
            Runs::from_lengths(length, lengths).filter(|_| even).ok_or_else(|| body.damaged())
        }
        AS_BITS => {
            let bits = body.slice(length.div_ceil(8) as usize)?;
            let set = |place: &u32| bits[*place as usize / 8] >> (place % 8) & 1 == 1;
            let beyond = length..u32::try_from(bits.len() as u64 * 8).unwrap_or(length);
            if beyond.clone().any(|place| set(&place)) {
                return Err(body.damaged());
            }
            Ok(Runs::new(length, (0..length).filter(set)))
        }
        _ => Err(body.damaged()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sets() -> impl Strategy<Value = Vec<Runs>> {
        let set = (proptest::collection::vec(any::<bool>(), 0..300), 0_u32..2).prop_map(
            |(mut bits, sparse)| {
                if sparse == 1 {
                    bits.iter_mut().enumerate().for_each(|(at, bit)| *bit &= at % 50 == 0);
                }
                let places = (0_u32..).zip(&bits).filter(|(_, bit)| **bit).map(|(place, _)| place);
                Runs::new(u32::try_from(bits.len()).unwrap(), places)
            },
        );
        proptest::collection::vec(set, 3)
    }

    fn state(progress: Progress) -> State {
        let of = Of { dataset: DatasetId::from_bytes([7; 32]), layout: 11 };
        let plan = Plan { like_length: true, ..Plan::new(1, 2, 3).on(4, 5) };
        State { of, plan, stage: 1, yielded: 9, progress }
    }

    proptest! {
        #[test]
        fn bytes_say_all(base in proptest::option::of(sets()), unread in sets()) {
            let state = state(Progress::Drawn { base, unread });
            prop_assert_eq!(State::decode(&state.encode()), Ok(state));
        }

        /// Promise 6: whatever is announced, nothing is allocated that is not there.
        #[test]
        fn any_body_is_refused_or_understood(mut body in proptest::collection::vec(any::<u8>(), 0..80), keep in 0_usize..120) {
            let whole = state(Progress::Drawn { base: None, unread: vec![Runs::new(99, 3..70)] }).encode();
            let mut bytes = whole[24..whole.len() - 8].to_vec();
            bytes.truncate(keep);
            bytes.append(&mut body);
            if let Ok(state) = State::decode(&FORMAT.seal(&bytes)) {
                prop_assert_eq!(State::decode(&state.encode()), Ok(state));
            }
        }
    }

    #[test]
    fn replays_have_states_as_well() {
        let state = state(Progress::Replayed { recording: 77 });
        assert_eq!(State::decode(&state.encode()), Ok(state));
    }

    /// Version 1, as it is: a change of these bytes is a new version.
    #[test]
    fn the_format_is_what_it_was() {
        let unread = vec![Runs::new(5, 1..3), Runs::new(100, (0..100).filter(|at| at % 2 == 1))];
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
