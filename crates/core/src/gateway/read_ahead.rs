//! Read-ahead: how many segments a reader keeps under way.
//!
//! The window of a reader doubles with each segment that it has taken, from one segment to a bound,
//! so that a reader of a few kilobytes causes no more reads than it needs, and a sequential one
//! keeps the device or the origin busy.

/// The window of one reader.
#[derive(Debug, Clone, Copy)]
pub struct ReadAheadWindow {
    segments: usize,
    segments_max: usize,
}

impl ReadAheadWindow {
    /// A window that grows up to this number of segments, and at least one.
    pub fn new(segments_max: usize) -> Self {
        Self { segments: 2.min(segments_max.max(1)), segments_max: segments_max.max(1) }
    }

    /// Segments under way at a time, the one that is being sent included.
    pub fn segments(self) -> usize {
        self.segments
    }

    /// The reader has taken a segment.
    pub fn on_taken(&mut self) {
        self.segments = (self.segments * 2).min(self.segments_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_to_its_bound() {
        let mut window = ReadAheadWindow::new(8);
        let mut sizes = vec![window.segments()];
        for _ in 0..4 {
            window.on_taken();
            sizes.push(window.segments());
        }
        assert_eq!(sizes, [2, 4, 8, 8, 8]);
        assert_eq!(ReadAheadWindow::new(0).segments(), 1);
    }
}
