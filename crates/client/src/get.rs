//! Gets: over the socket, or through the shm region that a node shares with this process.
//!
//! On a Unix socket the first get requests a shm region. If the node grants one, it places bytes
//! there, and the client copies them out or returns them as views. Bytes that do not fit come over
//! the socket. Each get reports the slots that were released since the last one.

use std::{env, sync::Arc, time::Duration};

use forebay_core::{BlobOrdinal, ByteSize};
use forebay_shm::{ShmMapping, SlotView};
use forebay_wire::{BATCH_MAX, BlobRange, GetAnswer, Reply, Request, ShmRange};

use crate::{Client, ClientError, Handle, Result, View, frame_io::GetReply};

/// Size of the shm region; `0B` for none.
const SHM_VARIABLE: &str = "FOREBAY_SHM";
/// Default size: room for a batch or two.
const SHM_SIZE: ByteSize = ByteSize::mib(32);

/// Slowest transfer that is waited for, in bytes per microsecond: 4 MB/s. Most origins are faster.
const BYTES_PER_MICROSECOND_MIN: u64 = 4;

/// Time that each range of a get adds, for its read from the device.
const RANGE_TIME: Duration = Duration::from_micros(100);

/// A connection's shm region.
#[derive(Debug)]
pub(crate) enum ShmState {
    /// The first get requests one of this size.
    Unrequested(ByteSize),
    Mapped(Arc<ShmMapping>),
    /// There is none; gets go over the socket.
    None,
}

impl ShmState {
    /// The setting of the environment. Only a local connection can have a shm region.
    pub fn from_environment(is_local: bool) -> Result<Self> {
        let size = match env::var(SHM_VARIABLE) {
            Ok(value) if !value.is_empty() => value.parse().map_err(|_| {
                let fix = "a size such as 32MiB, or to 0B for none";
                ClientError::Setting { name: SHM_VARIABLE, value, fix }
            })?,
            _ => SHM_SIZE,
        };
        Ok(if is_local && size.0 > 0 { Self::Unrequested(size) } else { Self::None })
    }
}

/// A range of a blob, and the buffer that receives it.
#[derive(Debug)]
pub struct ReadInto<'a> {
    /// The blob.
    pub blob: BlobOrdinal,
    /// The first byte.
    pub offset: u64,
    /// The buffer. Its length is that of the range: at most 16 MiB.
    pub into: &'a mut [u8],
}

impl ReadInto<'_> {
    fn range(&self) -> BlobRange {
        let length = u32::try_from(self.into.len()).expect("at most PAYLOAD_SIZE_MAX");
        BlobRange { blob: self.blob, offset: self.offset, length }
    }
}

/// How long the replies to a get are waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GetTimes {
    /// How long the node waits for blobs that another client is fetching.
    pub wait: Duration,
    /// A shorter timeout for the first reply, if other nodes have used part of the usual one.
    pub timeout: Option<Duration>,
}

/// The destination of hits.
trait Sink {
    /// The buffer for a range that comes over the socket, as long as the range.
    fn memory(&mut self, index: usize) -> &mut [u8];

    /// Takes a range that is in the shm region.
    fn on_placed(&mut self, index: usize, view: SlotView);
}

impl Sink for [ReadInto<'_>] {
    fn memory(&mut self, index: usize) -> &mut [u8] {
        self[index].into
    }

    fn on_placed(&mut self, index: usize, view: SlotView) {
        self[index].into.copy_from_slice(&view);
    }
}

/// A sink that collects views.
struct Views<'a> {
    ranges: &'a [BlobRange],
    views: Vec<Option<Received>>,
}

enum Received {
    Shared(SlotView),
    Copied(Vec<u8>),
}

impl Sink for Views<'_> {
    fn memory(&mut self, index: usize) -> &mut [u8] {
        let memory = Received::Copied(vec![0; self.ranges[index].length as usize]);
        match self.views[index].insert(memory) {
            Received::Copied(memory) => memory,
            Received::Shared(_) => unreachable!("just inserted"),
        }
    }

    fn on_placed(&mut self, index: usize, view: SlotView) {
        self.views[index] = Some(Received::Shared(view));
    }
}

/// A get that was sent and whose replies are still to be received.
#[derive(Debug)]
pub(crate) struct PendingGet {
    id: u64,
    ranges: Vec<BlobRange>,
    shm: Option<Arc<ShmMapping>>,
}

impl Client {
    /// Does without a shm region: all bytes come over the socket.
    #[must_use]
    pub fn over_socket(mut self) -> Self {
        self.shm = ShmState::None;
        self
    }

    /// Reads ranges into their buffers, and waits up to `wait` for blobs that another client is
    /// fetching. The answers are in the order of the ranges.
    pub fn get(
        &mut self,
        handle: Handle,
        wait: Duration,
        reads: &mut [ReadInto<'_>],
    ) -> Result<Vec<GetAnswer>> {
        let mut all = Vec::with_capacity(reads.len());
        for batch in reads.chunks_mut(BATCH_MAX) {
            let pending = self.send_get(handle, wait, batch)?;
            let times = GetTimes { wait, timeout: None };
            all.extend(self.receive_get(pending, times, batch)?);
        }
        Ok(all)
    }

    /// Sends a get of one batch.
    pub(crate) fn send_get(
        &mut self,
        handle: Handle,
        wait: Duration,
        batch: &[ReadInto<'_>],
    ) -> Result<PendingGet> {
        self.send_ranges(handle, wait, batch.iter().map(ReadInto::range).collect())
    }

    /// Receives its replies.
    pub(crate) fn receive_get(
        &mut self,
        pending: PendingGet,
        times: GetTimes,
        batch: &mut [ReadInto<'_>],
    ) -> Result<Vec<GetAnswer>> {
        self.receive_ranges(pending, times, batch)
    }

    /// Reads ranges like [`Client::get`] and returns views of the hits. A view occupies its slot of
    /// the shm region until it is dropped. When the region is full, bytes come over the socket.
    pub fn get_views(
        &mut self,
        handle: Handle,
        wait: Duration,
        ranges: &[BlobRange],
    ) -> Result<Vec<std::result::Result<View, GetAnswer>>> {
        let mut all = Vec::with_capacity(ranges.len());
        for ranges in ranges.chunks(BATCH_MAX) {
            let pending = self.send_ranges(handle, wait, ranges.to_vec())?;
            all.extend(self.receive_views(pending, GetTimes { wait, timeout: None })?);
        }
        Ok(all)
    }

    /// Receives views of one batch.
    pub(crate) fn receive_views(
        &mut self,
        pending: PendingGet,
        times: GetTimes,
    ) -> Result<Vec<std::result::Result<View, GetAnswer>>> {
        let ranges = pending.ranges.clone();
        let mut views = Views { ranges: &ranges, views: ranges.iter().map(|_| None).collect() };
        let answers = self.receive_ranges(pending, times, &mut views)?;
        let view = |(answer, received)| match (answer, received) {
            (GetAnswer::Hit, Some(Received::Shared(view))) => Ok(View::shared(view)),
            (GetAnswer::Hit, Some(Received::Copied(bytes))) => Ok(View::own(bytes)),
            (GetAnswer::Hit, None) => Ok(View::own(Vec::new())),
            (answer, _) => Err(answer),
        };
        Ok(answers.into_iter().zip(views.views).map(view).collect())
    }

    /// Sends a get of one batch of ranges.
    pub(crate) fn send_ranges(
        &mut self,
        Handle(handle): Handle,
        wait: Duration,
        ranges: Vec<BlobRange>,
    ) -> Result<PendingGet> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let shm = self.shm_mapping()?;
        let sent = ranges.clone();
        let id = self.send(&match &shm {
            Some(shm) => {
                let released = shm.take_released(BATCH_MAX);
                Request::GetShm { handle, wait_ms, released, ranges: sent }
            }
            None => Request::Get { handle, wait_ms, ranges: sent },
        })?;
        Ok(PendingGet { id, ranges, shm })
    }

    fn receive_ranges(
        &mut self,
        PendingGet { id, ranges, shm }: PendingGet,
        GetTimes { wait, mut timeout }: GetTimes,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Vec<GetAnswer>> {
        let mut answers = vec![None; ranges.len()];
        // Each range is answered once.
        let mut note = |index: u32, answer| {
            let slot = answers.get_mut(index as usize).filter(|slot| slot.is_none())?;
            *slot = Some(answer);
            Some((index as usize, ranges[index as usize].length as usize))
        };
        let mut left = ranges.len();
        let (began, first) = (self.io.now(), timeout.unwrap_or_else(|| self.io.timeout()));
        let bytes: u64 = ranges.iter().map(|range| u64::from(range.length)).sum();
        let transfer = Duration::from_micros(bytes / BYTES_PER_MICROSECOND_MIN);
        let all = first + wait + transfer + RANGE_TIME * u32::try_from(left).unwrap_or(u32::MAX);
        while left > 0 {
            // The replies together have one deadline: a node that sends each of them slowly does
            // not hold up the job.
            let remaining = all.saturating_sub(self.io.now().duration_since(began));
            let timeout = timeout.take().unwrap_or(remaining);
            let reply = self.io.with_timeout(Some(timeout), |io| io.get_reply(id, wait))?;
            match reply {
                GetReply::Range { index, answer, length } => {
                    let noted = note(index, answer);
                    let (index, requested) = noted.ok_or_else(|| self.io.mark_broken())?;
                    let expected = if answer == GetAnswer::Hit { requested } else { 0 };
                    if length != expected {
                        return Err(self.io.mark_broken());
                    }
                    if length > 0 {
                        let remaining = all.saturating_sub(self.io.now().duration_since(began));
                        let memory = sink.memory(index);
                        self.io.with_timeout(Some(remaining), |io| io.read(memory))?;
                    }
                    left -= 1;
                }
                GetReply::GetShm(places) => {
                    for ShmRange { index, offset, length } in places {
                        let view = shm.as_ref().and_then(|shm| shm.view(offset, length));
                        let noted = note(index, GetAnswer::Hit);
                        let (Some(view), Some((index, requested))) = (view, noted) else {
                            return Err(self.io.mark_broken());
                        };
                        if view.len() != requested {
                            return Err(self.io.mark_broken());
                        }
                        sink.on_placed(index, view);
                        left -= 1;
                    }
                }
            }
        }
        Ok(answers.into_iter().map(|answer| answer.expect("each was answered once")).collect())
    }

    /// The shm region, if there is one. The first call requests it.
    fn shm_mapping(&mut self) -> Result<Option<Arc<ShmMapping>>> {
        match &self.shm {
            ShmState::Mapped(shm) => return Ok(Some(Arc::clone(shm))),
            ShmState::None => return Ok(None),
            ShmState::Unrequested(size) => {
                let request = Request::ShmMap { size: size.0 };
                self.shm = ShmState::None;
                let id = self.send(&request)?;
                let (reply, descriptor) = self.io.shm_reply(id)?;
                if let (Reply::ShmMap { size }, Some(descriptor)) = (reply, descriptor)
                    && let Ok(size) = usize::try_from(size)
                    && let Ok(shm) = ShmMapping::open(descriptor, size)
                {
                    self.shm = ShmState::Mapped(shm);
                }
            }
        }
        match &self.shm {
            ShmState::Mapped(shm) => Ok(Some(Arc::clone(shm))),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
        os::{
            fd::{AsFd as _, OwnedFd},
            unix::net::{UnixListener, UnixStream},
        },
        thread,
    };

    use forebay_shm::send_with_fd;
    use forebay_wire::{HEADER_SIZE, Header};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const REGION_SIZE: u64 = 1 << 20;

    fn next_request(socket: &mut UnixStream) -> Option<(u64, Request)> {
        let mut header = [0; HEADER_SIZE];
        socket.read_exact(&mut header).ok()?;
        let header = Header::decode(&header).unwrap();
        let mut body = vec![0; header.body_size];
        socket.read_exact(&mut body).unwrap();
        Some((header.id, Request::decode(&header, &body.into()).unwrap()))
    }

    /// A client of a node that passes this descriptor, if any, as a shm region of 1 MiB, and
    /// answers gets with `answer`.
    fn client_of(
        descriptor: Option<OwnedFd>,
        answer: impl Fn(&Request) -> Reply + Send + 'static,
    ) -> Client {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            while let Some((id, request)) = next_request(&mut socket) {
                let reply = match &request {
                    Request::Hello { .. } => Reply::Hello { version: 1, lease_ms: 1 },
                    Request::ShmMap { .. } => {
                        let frame = Reply::ShmMap { size: REGION_SIZE }.encode(id).to_bytes();
                        match &descriptor {
                            Some(descriptor) => {
                                send_with_fd(&socket, &frame, descriptor.as_fd()).unwrap();
                            }
                            None => socket.write_all(&frame).unwrap(),
                        }
                        continue;
                    }
                    other => answer(other),
                };
                // A client that detects a false reply closes the connection.
                let _ = socket.write_all(&reply.encode(id).to_bytes());
            }
        });
        Client::connect(&path, "job", TIMEOUT).unwrap()
    }

    fn get(client: &mut Client) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 5];
        let read = ReadInto { blob: BlobOrdinal::new(0), offset: 0, into: &mut bytes };
        client.get(Handle(0), TIMEOUT, &mut [read]).map(|_| bytes)
    }

    /// Memory that the node could shrink during a read is not mapped; bytes come over the socket.
    #[test]
    fn an_unsealed_region_is_not_used() {
        let file: File = tempfile::tempfile().unwrap();
        file.set_len(REGION_SIZE).unwrap();
        for descriptor in [None, Some(file.into())] {
            let mut client = client_of(descriptor, |request| {
                assert!(matches!(request, Request::Get { .. }), "{request:?}");
                let payload = bytes::Bytes::from_static(b"bytes");
                Reply::Get { index: 0, answer: GetAnswer::Hit, payload }
            });
            assert_eq!(get(&mut client).unwrap(), b"bytes");
        }
    }

    /// Promise 1: impossible slots break the connection.
    #[test]
    fn impossible_slots_are_rejected() {
        let place = |index, offset, length| ShmRange { index, offset, length };
        let replies = [
            vec![place(0, 1 << 20, 5)],
            vec![place(0, (1 << 20) - 4, 5)],
            vec![place(0, u32::MAX, 5)],
            vec![place(1, 0, 5)],
            vec![place(0, 0, 4)],
            vec![place(0, 0, 5), place(0, 0, 5)],
        ];
        for places in replies {
            let (_region, granted) =
                forebay_shm::ShmRegion::new(1 << 20, drop).expect("memory to share");
            let sent = places.clone();
            let mut client =
                client_of(Some(granted), move |_| Reply::GetShm { ranges: sent.clone() });
            let refused = get(&mut client);
            assert!(matches!(refused, Err(ClientError::Unexpected)), "{places:?}: {refused:?}");
            assert!(get(&mut client).is_err(), "{places:?}: the connection is broken");
        }
    }
}
