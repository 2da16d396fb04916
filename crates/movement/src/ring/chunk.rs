//! Which bytes of a source a slot holds.

/// A range of a source that moves in one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Index of the chunk in the order of offsets.
    pub index: u64,
    /// Offset of the chunk's first byte, counted from the first byte of the source.
    pub offset: u64,
    /// Number of bytes, at least 1.
    pub bytes: usize,
}

/// Splits a source into chunks of one slot each; the first chunk is shorter by the source's lead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    bytes: u64,
    slot_bytes: u64,
    lead_bytes: u64,
}

impl Split {
    /// # Panics
    /// If the lead is not shorter than a slot.
    pub(super) fn new(bytes: u64, slot_bytes: usize, lead_bytes: usize) -> Split {
        assert!(
            lead_bytes < slot_bytes,
            "a lead of {lead_bytes} bytes does not fit into a slot of {slot_bytes}"
        );
        Split {
            bytes,
            slot_bytes: slot_bytes as u64,
            lead_bytes: lead_bytes as u64,
        }
    }

    /// Returns the number of chunks.
    pub(super) fn count(&self) -> u64 {
        match self.bytes {
            0 => 0,
            bytes => (bytes + self.lead_bytes).div_ceil(self.slot_bytes),
        }
    }

    /// Returns a chunk; `None` if the source ends before it.
    pub(super) fn chunk(&self, index: u64) -> Option<Chunk> {
        let begin = (index * self.slot_bytes).saturating_sub(self.lead_bytes);
        let end = ((index + 1) * self.slot_bytes - self.lead_bytes).min(self.bytes);
        (begin < end).then(|| Chunk {
            index,
            offset: begin,
            bytes: (end - begin) as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(bytes: u64, slot_bytes: usize, lead_bytes: usize) -> Vec<(u64, usize)> {
        let split = Split::new(bytes, slot_bytes, lead_bytes);
        let chunks: Vec<Chunk> = (0..).map_while(|index| split.chunk(index)).collect();
        assert_eq!(split.count(), chunks.len() as u64);
        chunks
            .iter()
            .map(|chunk| (chunk.offset, chunk.bytes))
            .collect()
    }

    #[test]
    fn chunks_cover_the_source_once_and_in_order() {
        assert_eq!(ranges(0, 4096, 0), []);
        assert_eq!(ranges(1, 4096, 4095), [(0, 1)]);
        assert_eq!(ranges(2, 4096, 4095), [(0, 1), (1, 1)]);
        assert_eq!(ranges(8192, 4096, 0), [(0, 4096), (4096, 4096)]);
        assert_eq!(
            ranges(8193, 4096, 96),
            [(0, 4000), (4000, 4096), (8096, 97)]
        );
    }
}
