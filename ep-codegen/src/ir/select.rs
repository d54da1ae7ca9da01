//! Choosing one arm per axis: what remains of a pipeline when every guard is decided.

use super::simple::simplify;
use super::split::split;
use super::{Arm, Pipeline, Stmt, When, change, walk};

/// One arm per axis, in the order of the pipeline's axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Names of the chosen arms.
    pub arms: Vec<String>,
}

impl Pipeline {
    /// Every choice of arms, first axis slowest: one text each.
    pub fn choices(&self) -> Vec<Choice> {
        let mut all = vec![Choice { arms: Vec::new() }];
        for axis in &self.axes {
            all = all
                .iter()
                .flat_map(|choice| {
                    axis.arms.iter().map(move |arm| {
                        let mut arms = choice.arms.clone();
                        arms.push(arm.name.clone());
                        Choice { arms }
                    })
                })
                .collect();
        }
        all
    }

    /// The pipeline with only the items whose guards hold under `choice`; guards are gone, and
    /// each axis keeps the chosen arm alone. A handle's table that only another arm reads is gone
    /// too, so that a call need not bring it. Statements that mean the same have one form.
    pub fn select(&self, choice: &Choice) -> Pipeline {
        let mut selected = self.select_as_declared(choice);
        simplify(&mut selected);
        split(&mut selected);
        selected
    }

    /// [`Pipeline::select`] with every statement as it is declared.
    pub fn select_as_declared(&self, choice: &Choice) -> Pipeline {
        let holds = |guards: &[When]| guards.iter().all(|when| self.holds(when, choice));
        let mut selected = self.clone();
        for (axis, arm) in selected.axes.iter_mut().zip(&choice.arms) {
            axis.arms.retain(|candidate: &Arm| candidate.name == *arm);
        }
        macro_rules! keep {
            ($($items:ident),*) => {$(
                selected.$items.retain(|item| holds(&item.when));
                selected.$items.iter_mut().for_each(|item| item.when.clear());
            )*};
        }
        keep!(requires, tunes, args, tensors, messages, channels, roles);
        for role in &mut selected.roles {
            role.body = self.select_body(&role.body, choice);
        }
        let read: Vec<bool> = selected
            .tensors
            .iter()
            .map(|tensor| tensor.from_handle.is_none() || walk::mentions(&selected, &tensor.name))
            .collect();
        let mut read = read.into_iter();
        selected.tensors.retain(|_| read.next().unwrap_or(true));
        selected
    }

    fn holds(&self, when: &When, choice: &Choice) -> bool {
        self.axes
            .iter()
            .zip(&choice.arms)
            .any(|(axis, arm)| axis.name == when.axis && when.arms.contains(arm))
    }

    fn select_body(&self, body: &[Stmt], choice: &Choice) -> Vec<Stmt> {
        body.iter()
            .filter(|stmt| stmt.when.iter().all(|when| self.holds(when, choice)))
            .map(|stmt| {
                let mut stmt = stmt.clone();
                stmt.when.clear();
                if let Some(body) = change::nested(&mut stmt) {
                    *body = self.select_body(body, choice);
                }
                stmt
            })
            .collect()
    }
}
