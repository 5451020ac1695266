//! Memory in large pages, wherever the system has them. Decoding reads all weights, keys and values for
//! every token, and reads small pages at little more than half the speed; prefill writes results a column
//! at a time, so that each row of a batch would be in a small page of its own.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::{Mmap, MmapMut, MmapOptions};

use crate::pool::Pool;

/// Zeroed memory that belongs to no file. What is not touched is not taken, nor counted by systems that
/// promise no more memory than they have.
///
/// # Errors
/// If there is no such memory.
pub(crate) fn zeroed(len: usize) -> io::Result<MmapMut> {
    let memory = MmapOptions::new().len(len.max(1)).no_reserve_swap().map_anon()?;
    #[cfg(target_os = "linux")]
    {
        // Without them all is well too.
        let _ = memory.advise(memmap2::Advice::HugePage);
    }
    Ok(memory)
}

/// Numbers of which any bits are one.
///
/// # Safety
/// They are so, zero is all zeros, and no larger than a cache line.
pub(crate) unsafe trait Number: Copy {}

// SAFETY: any bits are a float.
unsafe impl Number for f32 {}
// SAFETY: any bits are an integer.
unsafe impl Number for u16 {}

/// Zeroed numbers, the first on a cache line, so that threads that write neighbouring parts of a row do
/// not write to the same line. Memory is taken when they are touched.
#[derive(Debug)]
pub(crate) struct Numbers<T>(Option<MmapMut>, PhantomData<T>);

pub(crate) type Floats = Numbers<f32>;

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Numbers(None, PhantomData)
    }
}

impl<T: Number> Numbers<T> {
    /// `len` of them.
    ///
    /// # Errors
    /// If there is no such memory.
    pub(crate) fn zeroed(len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = if bytes == 0 { None } else { Some(zeroed(bytes)?) };
        Ok(Numbers(memory, PhantomData))
    }
}

impl<T: Number> Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let Some(memory) = &self.0 else { return &[] };
        // SAFETY: mappings are aligned to pages, and any bits are numbers.
        unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), memory.len() / size_of::<T>()) }
    }
}

impl<T: Number> DerefMut for Numbers<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let Some(memory) = &mut self.0 else { return &mut [] };
        let len = memory.len() / size_of::<T>();
        // SAFETY: as above; they are borrowed with the result.
        unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), len) }
    }
}

/// The bytes of a file. They are mapped, unless the system would do so in small pages only, as it
/// does for file systems that cache files in small pages: then they are read into memory of large
/// ones.
///
/// # Errors
/// If the file cannot be mapped or read.
pub(crate) fn of_file(pool: &Pool, file: &File) -> io::Result<Mmap> {
    // SAFETY: what is read through the mapping are numbers, valid whatever they are. Of other
    // programs only those of the same user may write the file (the caller's check), and ours never
    // change one that is in place. If the file is cut short nevertheless, touching what is lost ends
    // the process, as with every mapped file.
    let map = unsafe { Mmap::map(file) }?;
    #[cfg(target_os = "linux")]
    {
        let _ = map.advise(memmap2::Advice::HugePage);
        if linux::in_small_pages(&map) {
            return linux::read(pool, file, map.len());
        }
    }
    let _ = pool;
    Ok(map)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::hint::black_box;
    use std::os::unix::fs::FileExt;
    use std::sync::OnceLock;

    use super::*;
    use crate::disjoint::Disjoint;

    const LARGE: usize = 2 << 20;
    /// Places of a mapping that are looked at, at most.
    const PROBES: usize = 8;
    /// Bytes that a thread reads at once.
    const READ: usize = 4 * LARGE;

    /// Whether the system has large pages but gives the mapping, of a file, small ones.
    pub(super) fn in_small_pages(map: &Mmap) -> bool {
        if map.len() < 2 * LARGE || !on_request() {
            return false;
        }
        let step = (map.len() / PROBES).max(LARGE);
        let probes = (0..=map.len() - LARGE).step_by(step);
        let touched = probes.inspect(|&at| _ = black_box(map[at])).count();
        large_bytes(map.as_ptr() as usize).is_some_and(|bytes| bytes < touched / 2 * LARGE)
    }

    /// Whether programs get large pages where they ask for them.
    fn on_request() -> bool {
        static SETTING: OnceLock<bool> = OnceLock::new();
        *SETTING.get_or_init(|| {
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
                .is_ok_and(|text| !text.contains("[never]"))
        })
    }

    /// Bytes in large pages of the mapping that starts at `start`, where the system tells.
    fn large_bytes(start: usize) -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let head = format!("{start:x}-");
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&head));
        let size = lines.find_map(|line| line.strip_prefix("FilePmdMapped:"))?;
        size.trim().trim_end_matches(" kB").parse::<usize>().ok()?.checked_mul(1 << 10)
    }

    /// The first `len` bytes of a file in memory of its own, read by all threads.
    pub(super) fn read(pool: &Pool, file: &File, len: usize) -> io::Result<Mmap> {
        let mut memory = zeroed(len)?;
        let failure = OnceLock::new();
        let out = Disjoint::new(&mut memory[..len]);
        pool.run(len.div_ceil(READ), |task, _| {
            let start = task * READ;
            // SAFETY: tasks have distinct parts.
            let part = unsafe { out.part(start..len.min(start + READ)) };
            if let Err(error) = file.read_exact_at(part, start as u64) {
                let _ = failure.set(error);
            }
        });
        match failure.into_inner() {
            Some(error) => Err(error),
            None => memory.make_read_only(),
        }
    }

    #[cfg(test)]
    mod tests {
        use std::io::Write;

        use super::*;
        use crate::isa::Isa;

        #[test]
        fn a_file_that_is_read_is_what_a_mapping_of_it_is() {
            let pool = Pool::new(2, Isa::Portable).unwrap();
            let mut file = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = (0..2 * READ + 12345).map(|i| ((i * 7) >> 3) as u8).collect();
            file.write_all(&bytes).unwrap();
            assert!(read(&pool, &file, bytes.len()).unwrap()[..] == bytes);
            assert!(of_file(&pool, &file).unwrap()[..] == bytes);
            assert!(read(&pool, &file, bytes.len() + 1).is_err());
        }

        #[test]
        fn memory_of_no_file_has_no_large_pages_of_one() {
            let memory = zeroed(4 * LARGE).unwrap().make_read_only().unwrap();
            assert_eq!(large_bytes(memory.as_ptr() as usize), Some(0));
            assert_eq!(in_small_pages(&memory), on_request());
        }
    }
}
