//! Every step on a record, and which of them led to the state that the box is in.
//!
//! A box can be put back to an earlier state, and from there on to one that it was put back from. So its steps are a tree:
//! each knows the one before it, and the way from the root to where the box is now is its *line*. Roots are what the box
//! began with, and the snapshots that it was put on and that hold the state after none of its steps.

use super::model::{Base, Step};

/// The steps of a box.
#[derive(Default)]
pub(super) struct Past {
    nodes: Vec<Node>,
    /// The steps that led to where the box is, the first one first.
    line: Vec<usize>,
    /// What lines begin with. The first is what the box began with.
    roots: Vec<Root>,
    /// The one of this line.
    root: usize,
}

struct Node {
    step: Step,
    /// Its number on record; 0 if it has none.
    number: u64,
    /// The line of the record at which it began.
    line: u64,
    before: Option<usize>,
    root: usize,
}

/// Where a step is on record.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OnRecord {
    /// Its number; 0 if it has none.
    pub(super) number: u64,
    /// The line at which it began.
    pub(super) line: u64,
}

/// What a line begins with.
#[derive(Default)]
pub(super) struct Root {
    pub(super) base: Option<Base>,
    /// The snapshot that the box was put on, if it was.
    pub(super) snapshot: Option<String>,
}

impl Past {
    /// How many steps there are, on whatever line.
    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// How many of them did not lead to where the box is.
    pub(super) fn undone(&self) -> usize {
        self.nodes.len() - self.line.len()
    }

    /// The last step.
    pub(super) fn last(&self) -> Option<&Step> {
        self.line.last().map(|&at| &self.nodes[at].step)
    }

    /// What the line begins with.
    pub(super) fn root(&mut self) -> &mut Root {
        if self.roots.is_empty() {
            self.roots.push(Root::default());
        }
        &mut self.roots[self.root]
    }

    /// A step was done where the box is. What to call it here.
    pub(super) fn push(&mut self, step: Step, on_record: OnRecord) -> usize {
        let OnRecord { number, line } = on_record;
        let before = self.line.last().copied();
        self.nodes.push(Node { step, number, line, before, root: self.root });
        self.line.push(self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// A step that is here already.
    pub(super) fn step(&mut self, at: usize) -> Option<&mut Step> {
        self.nodes.get_mut(at).map(|node| &mut node.step)
    }

    /// A step that is here already, to say more of it.
    pub(super) fn number(&mut self, at: usize, number: u64) -> Option<&mut Step> {
        let node = self.nodes.get_mut(at)?;
        node.number = number;
        Some(&mut node.step)
    }

    /// Takes a step for a part of another one, which is the last now.
    pub(super) fn become_part(&mut self, at: usize, whole: impl FnOnce(Step) -> Step, number: u64) {
        let Some(on_line) = self.line.iter().position(|&other| other == at) else { return };
        self.line.remove(on_line);
        let before = self.nodes[at].before;
        for node in self.nodes.iter_mut().filter(|node| node.before == Some(at)) {
            node.before = before;
        }
        let node = &mut self.nodes[at];
        node.before = self.line.last().copied();
        node.number = number;
        node.step = whole(std::mem::take(&mut node.step));
        self.line.push(at);
    }

    /// Where a step is in the line, from 1.
    pub(super) fn place(&self, at: usize) -> Option<usize> {
        self.line.iter().position(|&other| other == at).map(|place| place + 1)
    }

    /// The numbers on record of the steps of the line.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.line.iter().map(|&at| self.nodes[at].number).collect()
    }

    /// The lines of the record at which the steps of the line began.
    pub(super) fn lines(&self) -> Vec<u64> {
        self.line.iter().map(|&at| self.nodes[at].line).collect()
    }

    /// The box is in the state after this step; 0 is what it began with. Whether there is such a step.
    pub(super) fn go_to(&mut self, number: u64) -> bool {
        if number == 0 {
            self.line.clear();
            self.root = 0;
            return true;
        }
        let Some(at) = self.nodes.iter().rposition(|node| node.number == number) else { return false };
        let mut line: Vec<usize> = std::iter::successors(Some(at), |&at| self.nodes[at].before).collect();
        line.reverse();
        self.root = self.nodes[at].root;
        self.line = line;
        true
    }

    /// The box is in a state that none of its steps led to.
    pub(super) fn begin(&mut self, root: Root) {
        self.root();
        self.roots.push(root);
        self.root = self.roots.len() - 1;
        self.line.clear();
    }

    /// What the line begins with, and its steps.
    pub(super) fn into_line(mut self) -> (Root, Vec<Step>) {
        let root = std::mem::take(self.root());
        let steps = self.line.iter().map(|&at| std::mem::take(&mut self.nodes[at].step)).collect();
        (root, steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(tool: &str) -> Step {
        Step { tool: tool.to_owned(), ..Step::default() }
    }

    fn numbered(number: u64) -> OnRecord {
        OnRecord { number, line: 10 * number }
    }

    fn check(past: Past, expected: &str) {
        let (_, steps) = past.into_line();
        assert_eq!(steps.iter().map(|step| step.tool.as_str()).collect::<String>(), expected);
    }

    /// Three steps.
    fn past() -> Past {
        let mut past = Past::default();
        for (tool, number) in [("a", 1), ("b", 2), ("c", 3)] {
            past.push(step(tool), numbered(number));
        }
        past
    }

    #[test]
    fn a_box_goes_back_and_forth_between_its_steps() {
        let mut past = past();
        assert!(past.go_to(1));
        past.push(step("d"), numbered(4));
        assert!(past.go_to(3));
        past.push(step("e"), numbered(5));
        assert_eq!(past.undone(), 1);
        assert_eq!(past.lines(), [10, 20, 30, 50]);
        check(past, "abce");
    }

    #[test]
    fn a_step_that_nobody_knows_moves_nothing() {
        let mut past = past();
        assert!(!past.go_to(7));
        check(past, "abc");
    }

    #[test]
    fn lines_remember_what_they_begin_with() {
        let mut past = past();
        past.begin(Root { snapshot: Some("s".to_owned()), ..Root::default() });
        past.push(step("x"), numbered(4));
        assert!(past.go_to(2));
        assert_eq!(past.root().snapshot, None);
        assert!(past.go_to(4));
        assert_eq!(past.root().snapshot.as_deref(), Some("s"));
        check(past, "x");
    }

    #[test]
    fn what_a_tool_ran_becomes_its_call() {
        let mut past = past();
        past.become_part(1, |_| step("B"), 4);
        assert_eq!(past.place(1), Some(3));
        assert!(past.go_to(4));
        check(past, "acB");
    }
}
