//! Memory that was freed, back to the system.

/// Gives the system what the program has freed and the allocator keeps for later, where it does so and
/// can be asked not to. Worth it once a lot of small pieces is freed that nobody will ask for again, as
/// after making a tokenizer.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
