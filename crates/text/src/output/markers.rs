//! Markers in a stream of characters, such as `</think>`.

/// Characters that may turn out to begin a marker, held back until that is decided.
///
/// No marker of a set may lie inside another one of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    held: String,
}

impl Watch {
    /// Takes a character; those that can belong to none of `markers` go to `free`. The place in the
    /// list of the marker that is now whole.
    pub fn push(&mut self, c: char, markers: &[&str], free: &mut String) -> Option<usize> {
        self.held.push(c);
        while !self.held.is_empty() {
            if let Some(found) = markers.iter().position(|marker| *marker == self.held) {
                self.held.clear();
                return Some(found);
            }
            if markers.iter().any(|marker| marker.starts_with(&self.held)) {
                break;
            }
            free.push(self.held.remove(0));
        }
        None
    }

    /// What is held back, when nothing can complete it any more.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether nothing is held back.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

/// Removes white space at both ends of a stream of characters.
#[derive(Clone, Debug, Default)]
pub(super) struct Trim {
    started: bool,
    space: String,
}

impl Trim {
    /// Takes a character and adds to `out` what is now known to lie between two that are no space.
    pub fn push(&mut self, c: char, out: &mut String) {
        if !c.is_whitespace() {
            out.push_str(&self.space);
            out.push(c);
            self.space.clear();
            self.started = true;
        } else if self.started {
            self.space.push(c);
        }
    }

    /// Whether anything but space has come.
    pub fn started(&self) -> bool {
        self.started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_begin_a_marker_is_held() {
        let mut watch = Watch::default();
        let mut free = String::new();
        let found: Vec<_> = "a<<b<bc".chars().map(|c| watch.push(c, &["<bc"], &mut free)).collect();
        assert_eq!(found, [None, None, None, None, None, None, Some(0)]);
        assert_eq!(free, "a<<b");
        assert_eq!(watch.push('<', &["<bc"], &mut free), None);
        assert!(!watch.is_empty());
        assert_eq!(watch.take(), "<");
    }

    #[test]
    fn space_inside_stays() {
        let (mut trim, mut out) = (Trim::default(), String::new());
        "\n a b\n\nc \n".chars().for_each(|c| trim.push(c, &mut out));
        assert_eq!(out, "a b\n\nc");
    }
}
