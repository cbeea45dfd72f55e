//! The rules of topic names and filters.

/// What names may have at most.
#[derive(Clone, Copy)]
pub struct NameLimits {
    pub bytes_max: usize,
    pub levels_max: usize,
}

impl NameLimits {
    /// Whether messages can be published under a name that has no control characters.
    #[inline]
    pub fn allow_topic(&self, name: &str) -> bool {
        let (mut levels, mut has_wildcard) = (1, false);
        for &byte in name.as_bytes() {
            levels += usize::from(byte == b'/');
            has_wildcard |= byte == b'+' || byte == b'#';
        }
        !name.is_empty()
            && !has_wildcard
            && name.len() <= self.bytes_max
            && levels <= self.levels_max
    }

    /// Whether a text is a filter, of a subscription that is not shared.
    pub fn allow_filter(&self, filter: &str) -> bool {
        if filter.is_empty() || filter.len() > self.bytes_max || filter.starts_with("$share/") {
            return false;
        }
        let mut levels = 0;
        for level in filter.split('/') {
            levels += 1;
            if level.len() > 1 && level.contains(['+', '#']) {
                return false;
            }
        }
        let hash = filter.find('#');
        levels <= self.levels_max && hash.is_none_or(|at| at + 1 == filter.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: NameLimits = NameLimits { bytes_max: 20, levels_max: 4 };

    #[test]
    fn filters_have_wildcards_as_whole_levels() {
        for good in ["a", "/", "+", "#", "a/+/b", "+/#", "a/#", "//", "$SYS/#"] {
            assert!(LIMITS.allow_filter(good), "{good}");
        }
        for bad in [
            "",
            "a+",
            "+a",
            "a#",
            "#/a",
            "a/#/b",
            "a/b/c/d/e",
            "$share/g/a",
            "aaaaaaaaaaaaaaaaaaaaa",
        ] {
            assert!(!LIMITS.allow_filter(bad), "{bad}");
        }
    }

    #[test]
    fn topics_have_no_wildcards() {
        assert!(LIMITS.allow_topic("a/b/c/d"));
        for bad in ["", "a/+", "#", "a/b/c/d/e", "aaaaaaaaaaaaaaaaaaaaa"] {
            assert!(!LIMITS.allow_topic(bad), "{bad}");
        }
    }
}
