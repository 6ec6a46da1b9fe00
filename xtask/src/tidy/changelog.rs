//! A fragment of the change log says something.

use crate::tidy::Finding;
use crate::tidy::tree::Tree;

/// Checks every file below `changelog.d`.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.below("changelog.d/")
        .filter(|(path, text)| text.trim().is_empty() && !path.ends_with("/.gitkeep"))
        .map(|(path, _)| Finding::new(path, 1, "is empty"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_fragment_is_found() {
        let tree = Tree::of(&[
            ("changelog.d/a.md", " \n"),
            ("changelog.d/b.md", "Spill: faster.\n"),
        ]);
        assert_eq!(
            check(&tree),
            [Finding::new("changelog.d/a.md", 1, "is empty")]
        );
    }
}
