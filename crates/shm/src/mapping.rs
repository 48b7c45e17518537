//! The mapping itself, on both sides.

#![expect(unsafe_code, reason = "two processes share memory, which Rust cannot follow")]

use std::{
    fs::{File, OpenOptions},
    io,
    mem::ManuallyDrop,
    ops::Deref,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    process, slice,
    sync::Arc,
};

use forebay_core::{
    ByteSize,
    slots::{NotGiven, Slot, Slots},
};
use memmap2::{Advice, MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};

use crate::SIZE_MAX;

/// The node's side of a segment. It is left when nothing is being placed there any more.
pub struct Segment {
    map: MmapRaw,
    slots: Mutex<Slots>,
    /// Taken out when the segment is left.
    left: Option<(File, OnLeaving)>,
}

/// Who is told that a segment was left.
type OnLeaving = Box<dyn FnOnce(Remains) + Send + Sync>;

/// A slot that is being filled: the node's alone, until it is given. Dropped, it was taken in vain.
pub struct Place {
    segment: Arc<Segment>,
    /// Taken out when it is given.
    slot: Option<Slot>,
    length: u32,
}

/// What the node has left of a segment, and its client may still hold.
#[derive(Debug)]
pub struct Remains(File);

impl Segment {
    /// Makes a segment of so many bytes, all of them in memory, and what its client is to be passed.
    pub fn new(
        size: usize,
        on_leaving: impl FnOnce(Remains) + Send + Sync + 'static,
    ) -> io::Result<(Arc<Self>, OwnedFd)> {
        assert!((1..=SIZE_MAX).contains(&size), "a segment of {size} is over the limit");
        let made = memfd_create("forebay", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&made, size as u64)?;
        // What is there cannot be missing later, when it would be too late for an error.
        fallocate(&made, FallocateFlags::empty(), 0, size as u64)?;
        let map = MmapOptions::new().len(size).populate().map_raw(&made)?;
        // From here on nobody else can write to it, nor change its size, nor take the seals off.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&made, seals)?;
        // Opened anew, each counts as a reader or writer of its own (see `Remains`).
        let path = format!("/proc/self/fd/{}", made.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let lent = File::open(&path)?;
        let slots = Mutex::new(Slots::new(ByteSize(size as u64)));
        let told: OnLeaving = Box::new(on_leaving);
        Ok((Arc::new(Self { map, slots, left: Some((file, told)) }), lent.into()))
    }

    /// How large it is.
    pub fn size(&self) -> usize {
        self.map.len()
    }

    /// Takes a slot for so many bytes, if there is room.
    pub fn place(self: &Arc<Self>, length: u32) -> Option<Place> {
        let slot = self.slots.lock().take(length)?;
        Some(Place { segment: Arc::clone(self), slot: Some(slot), length })
    }

    /// The client lets go of these slots; the first that cannot be is named.
    pub fn release(&self, offsets: &[u32]) -> Result<(), NotGiven> {
        let mut slots = self.slots.lock();
        offsets.iter().try_for_each(|offset| slots.release(*offset))
    }

    /// Bytes that are being filled or the client's.
    pub fn taken(&self) -> u64 {
        self.slots.lock().taken()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some((file, on_leaving)) = self.left.take() {
            on_leaving(Remains(file));
        }
    }
}

impl Place {
    /// Writes bytes, so far from its beginning.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let slot = self.slot.as_ref().expect("not given yet");
        let end = at.checked_add(bytes.len()).expect("bytes are in memory");
        assert!(end <= self.length as usize, "{end} bytes are more than there is room for");
        // SAFETY: a slot lies within the mapping, and `end` within the slot. The mapping is writable and lives
        // as long as the segment, which `self` holds. No other `Place` has any of these bytes (`Slots` gives
        // each out once), this one is borrowed alone, and nobody in this process reads them, so that nothing
        // of `bytes` can overlap them. The client sees the slot only after it was told of it, through a socket.
        unsafe {
            let to = self.segment.map.as_mut_ptr().add(slot.offset() as usize + at);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// The client's from now on: where it lies, and how long it is.
    pub fn give(mut self) -> (u32, u32) {
        let slot = self.slot.take().expect("given once");
        let offset = slot.offset();
        self.segment.slots.lock().give(slot);
        (offset, self.length)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.segment.slots.lock().give_back(slot);
        }
    }
}

impl Remains {
    /// Whether the client has let go, too, so that the memory is free. A lease for writing is granted only to
    /// one whom nobody else has the file open with, or mapped; ours is the only descriptor that counts as a
    /// writer's, the client's counts as a reader's. Where the system has no leases it counts as gone.
    pub fn is_gone(&self) -> bool {
        let ask = |kind: i32| {
            // SAFETY: the descriptor is open, and this command takes a number and touches no memory.
            let answer = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, kind) };
            if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        match ask(libc::F_WRLCK) {
            Ok(()) => ask(libc::F_UNLCK).is_ok(),
            Err(error) => error.raw_os_error() != Some(libc::EAGAIN),
        }
    }
}

/// The client's side of a segment: to be read only.
#[derive(Debug)]
pub struct Window {
    map: ManuallyDrop<MmapRaw>,
    /// Whose it is: a child of this process has neither the memory nor the slots.
    process: u32,
    /// Slots that were let go of, and of which the node has yet to be told.
    released: Mutex<Vec<u32>>,
}

/// Bytes in one slot, which is let go of when this is dropped.
///
/// It belongs to the process that it was given to. A child of that process has no part in the memory, for its
/// parent may let go of the slot at any time: whoever forks copies what the child shall have.
#[derive(Debug)]
pub struct SlotView {
    window: Arc<Window>,
    offset: u32,
    length: u32,
}

impl Window {
    /// Maps what the node has passed, if it is as large as it should be and can never become shorter.
    pub fn open(descriptor: impl AsFd, size: usize) -> io::Result<Arc<Self>> {
        let unfit = |text| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        let seals = fcntl_get_seals(&descriptor)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::FUTURE_WRITE) {
            return unfit("the segment is not sealed");
        }
        let length = u64::try_from(fstat(&descriptor)?.st_size).unwrap_or(0);
        if !(1..=SIZE_MAX).contains(&size) || length != size as u64 {
            return unfit("the segment is not as large as was said");
        }
        let descriptor = descriptor.as_fd().as_raw_fd();
        let map = MmapOptions::new().len(size).populate().map_raw_read_only(descriptor)?;
        // Or a child would hold the memory for as long as it lives.
        map.advise(Advice::DontFork)?;
        let (map, released) = (ManuallyDrop::new(map), Mutex::default());
        Ok(Arc::new(Self { map, process: process::id(), released }))
    }

    /// What lies in a slot that the node has given; nothing, if it would leave the segment. The slot is let go
    /// of when the view is dropped.
    pub fn view(self: &Arc<Self>, offset: u32, length: u32) -> Option<SlotView> {
        let end = offset.checked_add(length)?;
        let window = (end as usize <= self.map.len()).then(|| Arc::clone(self))?;
        Some(SlotView { window, offset, length })
    }

    /// The slots that were let go of since this was last asked, as many as a request may name.
    pub fn take_released(&self, most: usize) -> Vec<u32> {
        let mut released = self.released.lock();
        if released.len() <= most {
            return std::mem::take(&mut *released);
        }
        let kept = released.len() - most;
        released.split_off(kept)
    }

    fn is_ours(&self) -> bool {
        self.process == process::id()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: it is dropped once, here. In a child there is nothing to be unmapped, and something else
            // may lie where it was.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

impl Deref for SlotView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        assert!(
            self.window.is_ours(),
            "a view belongs to the process that read it; copy it before a fork"
        );
        // SAFETY: the range was checked against the mapping, which lives as long as the window and is there in
        // this process; its pages were allocated by the node, and the seal keeps them from going. The node
        // wrote the bytes before it told us of them, and does not write there again before it is told that
        // this view was dropped; nobody else can write at all. It is the node that is believed here, as it is
        // for everything else it says.
        unsafe {
            slice::from_raw_parts(
                self.window.map.as_ptr().add(self.offset as usize),
                self.length as usize,
            )
        }
    }
}

impl Drop for SlotView {
    fn drop(&mut self) {
        // A child has copies of its parent's views, and must not let go of them.
        if self.window.is_ours() {
            self.window.released.lock().push(self.offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::net::UnixStream};

    use super::*;
    use crate::{pass, receive};

    const SIZE: usize = 1 << 20;

    fn both() -> (Arc<Segment>, Arc<Window>) {
        let (segment, lent) = Segment::new(SIZE, drop).unwrap();
        (segment, Window::open(lent, SIZE).unwrap())
    }

    #[test]
    fn what_is_placed_is_seen_until_it_is_let_go_of() {
        let (segment, window) = both();
        let mut place = segment.place(5000).unwrap();
        place.write(0, &[7; 4000]);
        place.write(4000, &[8; 1000]);
        let (offset, length) = place.give();
        let view = window.view(offset, length).unwrap();
        assert_eq!((&view[..4000], &view[4000..]), (&[7; 4000][..], &[8; 1000][..]));
        assert!(segment.taken() == 8192 && window.take_released(9).is_empty());
        let (read, window) = std::thread::spawn(move || (view.to_vec(), window)).join().unwrap();
        assert_eq!(read.len(), 5000);
        assert_eq!(segment.release(&window.take_released(9)), Ok(()));
        assert_eq!(segment.taken(), 0);
        drop(segment.place(1).unwrap());
        assert_eq!(segment.taken(), 0, "taken in vain");
        assert!(window.view(u32::MAX, 2).is_none() && window.view(1 << 20, 1).is_none());
    }

    /// Neither side can be hurt: nobody can change the size, and only the node can write.
    #[test]
    fn it_is_sealed() {
        let (segment, lent) = Segment::new(SIZE, drop).unwrap();
        let path = format!("/proc/self/fd/{}", lent.as_raw_fd());
        let mut forced = OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(forced.set_len(10).is_err() && forced.set_len(2 << 20).is_err());
        assert!(forced.write_all(b"scribble").is_err());
        assert!(MmapOptions::new().len(SIZE).map_raw(&forced).is_err());
        assert!(
            fallocate(&forced, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)
                .is_err()
        );
        assert!(segment.place(1).is_some());
        let other = memfd_create("other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&other, SIZE as u64).unwrap();
        assert!(Window::open(&other, SIZE).is_err(), "not sealed");
        assert!(Window::open(&lent, SIZE + 1).is_err(), "not as large");
    }

    #[test]
    fn it_is_gone_when_both_have_let_go() {
        let (told, leaving) = std::sync::mpsc::channel();
        let leave = move |remains| told.send(remains).unwrap();
        let (segment, lent) = Segment::new(SIZE, leave).unwrap();
        let window = Window::open(&lent, SIZE).unwrap();
        let view = window.view(0, 10).unwrap();
        let place = segment.place(1);
        drop(segment);
        assert!(leaving.try_recv().is_err(), "something is being placed there");
        drop(place);
        let remains = leaving.recv().unwrap();
        drop((lent, window));
        assert!(!remains.is_gone(), "a view is left");
        drop(view);
        assert!(remains.is_gone() && remains.is_gone());
    }

    /// A child has copies of its parent's views: it must neither let go of them nor read what may have changed.
    #[test]
    fn a_child_has_no_part_in_it() {
        let (segment, window) = both();
        let mut place = segment.place(100).unwrap();
        place.write(0, &[5; 100]);
        let (offset, length) = place.give();
        let view = window.view(offset, length).unwrap();
        // SAFETY: the child calls nothing that another thread of this process could have held up.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::panic::set_hook(Box::new(|_| {}));
            let reads = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| view[0])).is_ok();
            drop(view);
            let has_let_go = !window.released.lock().is_empty();
            drop(window);
            // SAFETY: it ends the process, and nothing else.
            unsafe { libc::_exit(i32::from(reads || has_let_go)) };
        }
        let mut status = 0;
        // SAFETY: `status` is there for as long as the call takes.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert!(view[..] == [5; 100] && window.take_released(9).is_empty());
        drop(view);
        assert_eq!(window.take_released(9), [offset]);
    }

    #[test]
    fn it_passes_over_a_socket() {
        let (segment, lent) = Segment::new(SIZE, drop).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        assert_eq!(pass(&here, b"frame", lent.as_fd()).unwrap(), 5);
        let mut bytes = [0; 9];
        let (count, descriptor) = receive(&there, &mut bytes).unwrap();
        let window = Window::open(descriptor.unwrap(), SIZE).unwrap();
        let mut place = segment.place(3).unwrap();
        place.write(0, b"abc");
        let (offset, length) = place.give();
        assert_eq!(
            (&bytes[..count], &window.view(offset, length).unwrap()[..]),
            (&b"frame"[..], &b"abc"[..])
        );
        (&here).write_all(b"x").unwrap();
        assert!(receive(&there, &mut bytes).unwrap().1.is_none());
    }
}
