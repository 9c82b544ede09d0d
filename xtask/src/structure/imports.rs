//! Find which file imports which, and the circles among them.

use std::collections::{BTreeMap, BTreeSet};

use super::source::ParsedFile;

/// Returns groups of files that all reach each other. Imports between a module and its own children do not count.
pub(crate) fn circles(files: &[ParsedFile]) -> Vec<BTreeSet<String>> {
    let arrows = arrows(files);
    let reached: BTreeMap<usize, BTreeSet<usize>> = arrows.keys().map(|from| (*from, reach(&arrows, *from))).collect();
    let mut seen: BTreeSet<usize> = BTreeSet::new();
    let mut circles = Vec::new();
    for (from, to) in &reached {
        if !to.contains(from) || seen.contains(from) {
            continue;
        }
        let circle: BTreeSet<usize> =
            to.iter().copied().filter(|other| reached.get(other).is_some_and(|back| back.contains(from))).collect();
        seen.extend(&circle);
        circles.push(circle.into_iter().map(|index| files[index].path.clone()).collect());
    }
    circles
}

/// For each file, by its index: the files that it names.
fn arrows(files: &[ParsedFile]) -> BTreeMap<usize, BTreeSet<usize>> {
    let key = |file: &ParsedFile, path: &[String]| (file.crate_name.clone(), file.module.0.clone(), path.to_vec());
    let places: BTreeMap<_, usize> =
        files.iter().enumerate().map(|(index, file)| (key(file, &file.module.1), index)).collect();
    let mut arrows: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        for path in &file.named_paths {
            let target = (0..=path.len()).rev().find_map(|length| places.get(&key(file, &path[..length])));
            let Some(target) = target.copied() else { continue };
            let (own, other) = (&file.module.1, &files[target].module.1);
            if !own.starts_with(other) && !other.starts_with(own) {
                arrows.entry(index).or_default().insert(target);
            }
        }
    }
    arrows
}

fn reach(arrows: &BTreeMap<usize, BTreeSet<usize>>, from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut next: Vec<usize> = arrows.get(&from).into_iter().flatten().copied().collect();
    while let Some(index) = next.pop() {
        if found.insert(index) {
            next.extend(arrows.get(&index).into_iter().flatten());
        }
    }
    found
}
