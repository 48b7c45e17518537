//! Gets: what is resident is read and sent, what somebody is fetching is waited for.
//!
//! A reader that takes its time must hold up nobody else. So reading happens on threads that may block,
//! but only while there is room for what is read; whoever has to wait for room waits as a task, which
//! costs next to nothing. And waiting for somebody's fetch is not counted against the gets under way: what
//! ends the wait may be a later request on the same connection.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::{
    node::Standing,
    shelf::Stay,
    table::{Row, Table},
};
use forebay_wire::{BlobRange, ErrorCode, GetAnswer, Reply};
use futures::{StreamExt as _, stream::FuturesUnordered};
use rustix::io::Errno;
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use crate::{
    node::{NodeService, Refused, row_of, wake_all},
    session::{Replies, Room},
    store::ReadError,
};

/// One range of a get, known to lie within its blob.
struct Wanted {
    index: u32,
    row: Row,
    range: Range<u64>,
}

impl Wanted {
    fn new(table: &Table, index: usize, range: BlobRange) -> Result<Self, Refused> {
        let row = row_of(table, range.blob)?;
        let end = range.offset.checked_add(u64::from(range.length));
        let end = end
            .filter(|end| *end <= row.length)
            .ok_or_else(|| (ErrorCode::Malformed, format!("a range leaves blob {}", range.blob)))?;
        let index = u32::try_from(index).expect("batches are bounded");
        Ok(Self { index, row, range: range.offset..end })
    }

    fn length(&self) -> usize {
        usize::try_from(self.range.end - self.range.start).expect("a range of a frame")
    }
}

impl NodeService {
    /// Answers a get. `turn` is returned when nothing is left but waiting.
    pub(crate) async fn get(
        self: Arc<Self>,
        table: Arc<Table>,
        wait: Duration,
        ranges: Vec<BlobRange>,
        replies: Replies,
        turn: OwnedSemaphorePermit,
    ) {
        let checked: Result<Vec<Wanted>, Refused> =
            ranges.iter().enumerate().map(|(at, range)| Wanted::new(&table, at, *range)).collect();
        let wanted = match checked {
            Ok(wanted) => wanted,
            Err((code, text)) => return replies.refuse(code, text).await,
        };
        drop((ranges, table));
        let deadline = Instant::now() + wait;
        let (mut ready, mut waiting) = (Vec::new(), FuturesUnordered::new());
        {
            let mut state = self.state.lock();
            for wanted in wanted {
                let standing = state.standing(&wanted.row.address);
                let may_wait = standing == Standing::Claimed && !wait.is_zero();
                let Some(place) = may_wait.then(|| replies.begin_wait()).flatten() else {
                    ready.push((standing, wanted));
                    continue;
                };
                let (waker, mut woken) = oneshot::channel();
                state.wait(wanted.row.address, waker);
                self.counters.waits.one();
                let replies = &replies;
                waiting.push(async move {
                    let in_time = tokio::select! {
                        woken = timeout_at(deadline, &mut woken) => woken.is_ok(),
                        () = replies.gone() => false,
                    };
                    drop((woken, place));
                    (in_time, wanted)
                });
            }
        }
        self.answer(ready, &replies).await;
        drop(turn);
        // A claim that ends without its blob is a miss for those who waited: whoever asks next claims it.
        while let Some((in_time, wanted)) = waiting.next().await {
            let standing = {
                let mut state = self.state.lock();
                if in_time {
                    state.standing(&wanted.row.address)
                } else {
                    state.forget(&wanted.row.address, oneshot::Sender::is_closed);
                    Standing::Claimed
                }
            };
            self.answer(vec![(standing, wanted)], &replies).await;
        }
    }

    /// Answers what need not wait any more.
    async fn answer(self: &Arc<Self>, ready: Vec<(Standing, Wanted)>, replies: &Replies) {
        let mut resident = VecDeque::new();
        for (standing, wanted) in ready {
            let answer = match standing {
                Standing::Resident(stay) => {
                    resident.push_back((stay, wanted));
                    continue;
                }
                Standing::Absent => GetAnswer::Miss,
                Standing::Claimed => GetAnswer::Claimed,
            };
            replies.send(&self.without_bytes(answer, wanted.index)).await;
        }
        while let Some((_, first)) = resident.front() {
            // Nobody is left to read it.
            let Some(room) = replies.room_for(first.length()).await else { return };
            let (node, replies) = (Arc::clone(self), replies.clone());
            let read = move || node.read_while_there_is_room(resident, room, &replies);
            resident = spawn_blocking(read).await.expect("reading does not panic");
        }
    }

    /// Reads and sends, on a thread that may block, until there would be something to wait for. Returns
    /// what is left.
    fn read_while_there_is_room(
        &self,
        mut resident: VecDeque<(Stay, Wanted)>,
        room: Room,
        replies: &Replies,
    ) -> VecDeque<(Stay, Wanted)> {
        let mut room = Some(room);
        while let Some((_, next)) = resident.front() {
            let length = next.length();
            let Some(room) = room.take().or_else(|| replies.try_room_for(length)) else { break };
            let (stay, Wanted { index, row, range }) = resident.pop_front().expect("just seen");
            let reply = match self.read(row, stay, range) {
                Some(payload) => {
                    self.counters.hits.one();
                    self.counters.hit_bytes.add(length as u64);
                    Reply::Get { index, answer: GetAnswer::Hit, payload }
                }
                None => self.without_bytes(GetAnswer::Miss, index),
            };
            replies.send_payload(&reply, room);
        }
        resident
    }

    /// Reads a range of a resident blob. Whatever is wrong with it is a miss.
    fn read(&self, row: Row, stay: Stay, range: Range<u64>) -> Option<Bytes> {
        match self.store.read(&row.address, row.length, range) {
            Ok(bytes) => return Some(bytes),
            Err(ReadError::Gone) => {}
            // Whoever uploads a table with wrong lengths must not cost others their blobs.
            Err(ReadError::OtherLength) => return None,
            Err(ReadError::Damaged(problem)) => {
                tracing::warn!(problem, "a blob is damaged and is dropped");
                self.counters.reads_damaged.one();
            }
            Err(ReadError::Io(error)) => {
                self.counters.reads_failed.one();
                if is_ours(&error) {
                    tracing::warn!(%error, "a blob cannot be read now");
                    return None;
                }
                tracing::warn!(%error, "a blob cannot be read and is dropped");
            }
        }
        if self.state.lock().lose(&row.address, stay) {
            let _ = self.store.remove(&row.address);
            let mut wake = Vec::new();
            self.state.lock().left(&[row.address], &mut wake);
            wake_all(wake);
        }
        None
    }

    fn without_bytes(&self, answer: GetAnswer, index: u32) -> Reply {
        match answer {
            GetAnswer::Claimed => self.counters.waits_in_vain.one(),
            _ => self.counters.misses.one(),
        }
        Reply::Get { index, answer, payload: Bytes::new() }
    }
}

/// Whether it is this process that has run out of something; the blob is none the worse for it.
fn is_ours(error: &std::io::Error) -> bool {
    let passing = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|error| passing.contains(&error))
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicI32, Ordering::Relaxed},
    };

    use forebay_core::{Address, ByteSize, Namespace};

    use super::*;
    use crate::store::{Files, Store, Writing};

    /// A store whose next reads fail with this error, if it is not nought.
    struct Failing(Files, AtomicI32);

    impl Store for Failing {
        fn recover(&self) -> io::Result<Vec<(Address, u64)>> {
            self.0.recover()
        }

        fn footprint(&self, length: u64) -> u64 {
            self.0.footprint(length)
        }

        fn read(
            &self,
            address: &Address,
            length: u64,
            range: Range<u64>,
        ) -> Result<Bytes, ReadError> {
            match self.1.load(Relaxed) {
                0 => self.0.read(address, length, range),
                error => Err(ReadError::Io(io::Error::from_raw_os_error(error))),
            }
        }

        fn create(&self, address: &Address, length: u64) -> io::Result<Box<dyn Writing>> {
            self.0.create(address, length)
        }

        fn remove(&self, address: &Address) -> io::Result<()> {
            self.0.remove(address)
        }
    }

    /// A node that has run out of file descriptors would otherwise throw away what it is asked for.
    #[test]
    fn a_shortage_of_the_process_costs_no_blob() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::open(directory.path()).unwrap();
        let row = Row { address: Namespace::public().address(b"x"), length: 1 };
        let mut writing = files.create(&row.address, 1).unwrap();
        writing.append(b"x").unwrap();
        writing.finish().unwrap();
        let store = Arc::new(Failing(files, AtomicI32::new(0)));
        let lease = Duration::from_secs(1);
        let node =
            NodeService::new(Arc::clone(&store) as Arc<dyn Store>, ByteSize::mib(1), lease, vec![]);
        let node = node.unwrap();
        let Standing::Resident(stay) = node.state.lock().standing(&row.address) else {
            panic!("it was there before the node was");
        };
        store.1.store(Errno::MFILE.raw_os_error(), Relaxed);
        assert_eq!(node.read(row, stay, 0..1), None, "a miss");
        store.1.store(0, Relaxed);
        assert_eq!(node.read(row, stay, 0..1).as_deref(), Some(&b"x"[..]), "but not a loss");
        store.1.store(Errno::IO.raw_os_error(), Relaxed);
        assert_eq!(node.read(row, stay, 0..1), None);
        assert_eq!(node.state.lock().standing(&row.address), Standing::Absent, "the disk's fault");
        assert_eq!(node.counters.reads_failed.get(), 2);
    }
}
