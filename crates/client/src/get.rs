//! Gets: over the socket, or through the segment that a node shares with this process.
//!
//! On a Unix socket the first get asks the node for a segment. If there is one, bytes are placed there, and
//! are copied out of it or handed out as views; what does not fit comes over the socket. What was let go of is
//! told with the next get.

use std::{env, sync::Arc, time::Duration};

use forebay_core::ByteSize;
use forebay_segment::{SlotView, Window};
use forebay_wire::{BATCH_MAX, BlobRange, GetAnswer, Placed, Reply, Request};

use crate::{Client, ClientError, Handle, Result, View, stream::GetReply};

/// How large a segment should be; `0B` for none.
const VARIABLE: &str = "FOREBAY_SEGMENT";
/// A batch or two.
const SIZE: ByteSize = ByteSize::mib(32);

/// What a connection has of a segment.
#[derive(Debug)]
pub(crate) enum Segment {
    /// It is to have one of this size, when it needs one.
    Wanted(ByteSize),
    Open(Arc<Window>),
    Without,
}

impl Segment {
    /// What the environment says, for a connection over which a descriptor can be passed.
    pub fn wanted(is_local: bool) -> Result<Self> {
        let size = match env::var(VARIABLE) {
            Ok(value) if !value.is_empty() => value.parse().map_err(|_| {
                let fix = "a size such as 32MiB, or to 0B for none";
                ClientError::Setting { name: VARIABLE, value, fix }
            })?,
            _ => SIZE,
        };
        Ok(if is_local && size.0 > 0 { Self::Wanted(size) } else { Self::Without })
    }
}

/// Some bytes of a blob, and where they are wanted.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Which blob.
    pub blob: u64,
    /// The first byte.
    pub offset: u64,
    /// As many bytes as there is room; at most 16 MiB.
    pub into: &'a mut [u8],
}

impl Wanted<'_> {
    fn range(&self) -> BlobRange {
        let length = u32::try_from(self.into.len()).expect("at most PAYLOAD_SIZE_MAX");
        BlobRange { blob: self.blob, offset: self.offset, length }
    }
}

/// Where the bytes of hits go.
trait Sink {
    /// Memory for a range that comes over the socket, as long as was asked for.
    fn memory(&mut self, index: usize) -> &mut [u8];

    /// A range lies in the segment.
    fn placed(&mut self, index: usize, view: SlotView);
}

impl Sink for [Wanted<'_>] {
    fn memory(&mut self, index: usize) -> &mut [u8] {
        self[index].into
    }

    fn placed(&mut self, index: usize, view: SlotView) {
        self[index].into.copy_from_slice(&view);
    }
}

/// Views that are being collected.
struct Views<'a> {
    ranges: &'a [BlobRange],
    views: Vec<Option<Taken>>,
}

enum Taken {
    Placed(SlotView),
    Read(Vec<u8>),
}

impl Sink for Views<'_> {
    fn memory(&mut self, index: usize) -> &mut [u8] {
        let memory = Taken::Read(vec![0; self.ranges[index].length as usize]);
        match self.views[index].insert(memory) {
            Taken::Read(memory) => memory,
            Taken::Placed(_) => unreachable!("just put there"),
        }
    }

    fn placed(&mut self, index: usize, view: SlotView) {
        self.views[index] = Some(Taken::Placed(view));
    }
}

/// One batch that was asked for, and is to be taken.
#[derive(Debug)]
pub(crate) struct Sent {
    id: u64,
    ranges: Vec<BlobRange>,
    window: Option<Arc<Window>>,
}

impl Client {
    /// Bytes come over the socket, also where there could be a segment.
    #[must_use]
    pub fn over_socket(self) -> Self {
        Self { segment: Segment::Without, ..self }
    }

    /// Asks for bytes, and waits up to `wait` for blobs that somebody is fetching. Hits are written straight
    /// to where they are wanted. The answers come back in the order of the ranges.
    pub fn get(
        &mut self,
        handle: Handle,
        wait: Duration,
        wanted: &mut [Wanted<'_>],
    ) -> Result<Vec<GetAnswer>> {
        let mut all = Vec::with_capacity(wanted.len());
        for batch in wanted.chunks_mut(BATCH_MAX) {
            let sent = self.ask_get(handle, wait, batch)?;
            all.extend(self.take_get(sent, wait, None, batch)?);
        }
        Ok(all)
    }

    /// The first half of a get of one batch.
    pub(crate) fn ask_get(
        &mut self,
        handle: Handle,
        wait: Duration,
        batch: &[Wanted<'_>],
    ) -> Result<Sent> {
        self.ask_ranges(handle, wait, batch.iter().map(Wanted::range).collect())
    }

    /// The other half; the first answer may be due sooner than usual.
    pub(crate) fn take_get(
        &mut self,
        sent: Sent,
        wait: Duration,
        within: Option<Duration>,
        batch: &mut [Wanted<'_>],
    ) -> Result<Vec<GetAnswer>> {
        self.take_ranges(sent, (wait, within), batch)
    }

    /// Asks for bytes like [`Client::get`], and hands out views of those that are there. Whoever keeps them
    /// keeps their places in the segment; when there is no room left, bytes come over the socket.
    pub fn get_views(
        &mut self,
        handle: Handle,
        wait: Duration,
        ranges: &[BlobRange],
    ) -> Result<Vec<std::result::Result<View, GetAnswer>>> {
        let mut all = Vec::with_capacity(ranges.len());
        for ranges in ranges.chunks(BATCH_MAX) {
            let sent = self.ask_ranges(handle, wait, ranges.to_vec())?;
            all.extend(self.take_views(sent, wait, None)?);
        }
        Ok(all)
    }

    /// The other half of asking for views of one batch; the first answer may be due sooner than usual.
    pub(crate) fn take_views(
        &mut self,
        sent: Sent,
        wait: Duration,
        within: Option<Duration>,
    ) -> Result<Vec<std::result::Result<View, GetAnswer>>> {
        let ranges = sent.ranges.clone();
        let mut views = Views { ranges: &ranges, views: ranges.iter().map(|_| None).collect() };
        let answers = self.take_ranges(sent, (wait, within), &mut views)?;
        let view = |(answer, taken)| match (answer, taken) {
            (GetAnswer::Hit, Some(Taken::Placed(view))) => Ok(View::shared(view)),
            (GetAnswer::Hit, Some(Taken::Read(bytes))) => Ok(View::own(bytes)),
            (GetAnswer::Hit, None) => Ok(View::own(Vec::new())),
            (answer, _) => Err(answer),
        };
        Ok(answers.into_iter().zip(views.views).map(view).collect())
    }

    /// Asks for one batch of ranges.
    pub(crate) fn ask_ranges(
        &mut self,
        Handle(handle): Handle,
        wait: Duration,
        ranges: Vec<BlobRange>,
    ) -> Result<Sent> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let window = self.window()?;
        let asked = ranges.clone();
        let id = self.send(&match &window {
            Some(window) => {
                let released = window.take_released(BATCH_MAX);
                Request::Place { handle, wait_ms, released, ranges: asked }
            }
            None => Request::Get { handle, wait_ms, ranges: asked },
        })?;
        Ok(Sent { id, ranges, window })
    }

    fn take_ranges(
        &mut self,
        Sent { id, ranges, window }: Sent,
        (wait, mut within): (Duration, Option<Duration>),
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
        while left > 0 {
            let reply = self.stream.sooner(within.take(), |stream| stream.get_reply(id, wait))?;
            match reply {
                GetReply::Range { index, answer, length } => {
                    let noted = note(index, answer);
                    let (index, wanted) = noted.ok_or_else(|| self.stream.spoilt())?;
                    let expected = if answer == GetAnswer::Hit { wanted } else { 0 };
                    if length != expected {
                        return Err(self.stream.spoilt());
                    }
                    if length > 0 {
                        self.stream.read(sink.memory(index))?;
                    }
                    left -= 1;
                }
                GetReply::Placed(places) => {
                    for Placed { index, offset, length } in places {
                        let view = window.as_ref().and_then(|window| window.view(offset, length));
                        let noted = note(index, GetAnswer::Hit);
                        let (Some(view), Some((index, wanted))) = (view, noted) else {
                            return Err(self.stream.spoilt());
                        };
                        if view.len() != wanted {
                            return Err(self.stream.spoilt());
                        }
                        sink.placed(index, view);
                        left -= 1;
                    }
                }
            }
        }
        Ok(answers.into_iter().map(|answer| answer.expect("each was answered once")).collect())
    }

    /// The segment, if there is one; asks for it when it is needed first. Without one, gets go over the socket.
    fn window(&mut self) -> Result<Option<Arc<Window>>> {
        match &self.segment {
            Segment::Open(window) => return Ok(Some(Arc::clone(window))),
            Segment::Without => return Ok(None),
            Segment::Wanted(size) => {
                let request = Request::Segment { size: size.0 };
                self.segment = Segment::Without;
                let id = self.send(&request)?;
                let (reply, descriptor) = self.stream.segment_reply(id)?;
                if let (Reply::Segment { size }, Some(descriptor)) = (reply, descriptor)
                    && let Ok(size) = usize::try_from(size)
                    && let Ok(window) = Window::open(descriptor, size)
                {
                    self.segment = Segment::Open(window);
                }
            }
        }
        match &self.segment {
            Segment::Open(window) => Ok(Some(Arc::clone(window))),
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

    use forebay_segment::pass;
    use forebay_wire::{HEADER_SIZE, Header};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    const SIZE: u64 = 1 << 20;

    fn next_request(socket: &mut UnixStream) -> Option<(u64, Request)> {
        let mut header = [0; HEADER_SIZE];
        socket.read_exact(&mut header).ok()?;
        let header = Header::decode(&header).unwrap();
        let mut body = vec![0; header.body_size];
        socket.read_exact(&mut body).unwrap();
        Some((header.id, Request::decode(&header, &body.into()).unwrap()))
    }

    /// A client of a node that passes this descriptor, if any, as a segment of 1 MiB, and answers gets like this.
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
                    Request::Segment { .. } => {
                        let frame = Reply::Segment { size: SIZE }.encode(id).to_bytes();
                        match &descriptor {
                            Some(descriptor) => {
                                pass(&socket, &frame, descriptor.as_fd()).unwrap();
                            }
                            None => socket.write_all(&frame).unwrap(),
                        }
                        continue;
                    }
                    other => answer(other),
                };
                // Whoever was lied to hangs up.
                let _ = socket.write_all(&reply.encode(id).to_bytes());
            }
        });
        Client::connect(&path, "job", PATIENCE).unwrap()
    }

    fn get(client: &mut Client) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 5];
        let wanted = Wanted { blob: 0, offset: 0, into: &mut bytes };
        client.get(Handle(0), PATIENCE, &mut [wanted]).map(|_| bytes)
    }

    /// Memory that might go while it is read is not mapped: bytes come over the socket instead.
    #[test]
    fn what_is_not_sealed_is_not_used() {
        let file: File = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        for descriptor in [None, Some(file.into())] {
            let mut client = client_of(descriptor, |request| {
                assert!(matches!(request, Request::Get { .. }), "{request:?}");
                let payload = bytes::Bytes::from_static(b"bytes");
                Reply::Get { index: 0, answer: GetAnswer::Hit, payload }
            });
            assert_eq!(get(&mut client).unwrap(), b"bytes");
        }
    }

    /// Promise 1: a node that says what cannot be is not believed.
    #[test]
    fn places_that_cannot_be_are_refused() {
        let place = |index, offset, length| Placed { index, offset, length };
        let lies = [
            vec![place(0, 1 << 20, 5)],
            vec![place(0, (1 << 20) - 4, 5)],
            vec![place(0, u32::MAX, 5)],
            vec![place(1, 0, 5)],
            vec![place(0, 0, 4)],
            vec![place(0, 0, 5), place(0, 0, 5)],
        ];
        for lie in lies {
            let (_segment, lent) =
                forebay_segment::Segment::new(1 << 20, drop).expect("memory to share");
            let said = lie.clone();
            let mut client = client_of(Some(lent), move |_| Reply::Placed { places: said.clone() });
            let refused = get(&mut client);
            assert!(matches!(refused, Err(ClientError::Unexpected)), "{lie:?}: {refused:?}");
            assert!(get(&mut client).is_err(), "{lie:?}: the two are out of step");
        }
    }
}
