//! Keeps a driver from complaining on standard error.

/// Mesa's layer that moves the GPU of the desktop session to the front; without a session it says so on
/// standard error, whoever looks for GPUs.
#[cfg(target_os = "linux")]
const NO_LAYER: &str = "NODEVICE_SELECT";

/// Where there is no desktop session, leaves out the layer of the driver that would ask it which GPU is
/// its own; nothing but complaints comes of that. To be called when the program begins: it changes the
/// environment, and does nothing once there is a second thread.
pub fn quiet_drivers() {
    #[cfg(target_os = "linux")]
    {
        // The last of them asks the layer for something.
        let named = ["XDG_RUNTIME_DIR", NO_LAYER, "MESA_VK_DEVICE_SELECT"];
        if named.iter().all(|name| std::env::var_os(name).is_none()) && is_alone() {
            #[allow(unsafe_code)]
            // SAFETY: no other thread is there that could read or change the environment meanwhile, and
            // only this one could start one.
            unsafe {
                std::env::set_var(NO_LAYER, "1");
            }
        }
    }
}

/// Whether this process has one thread, as far as the system tells.
#[cfg(target_os = "linux")]
fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_changed_beside_another_thread() {
        // Tests run in threads of their own.
        assert!(!is_alone());
        let before = std::env::var_os(NO_LAYER);
        quiet_drivers();
        assert_eq!(std::env::var_os(NO_LAYER), before);
    }
}
