//! Tests of front matter, error texts, limits and the rendered section.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn file(head: &str) -> String {
    format!("---\n{head}\n---\n\n# How to\n\nname: not of the head\n")
}

fn skill(name: &str, description: &str) -> Skill {
    Skill { name: name.to_owned(), description: description.to_owned() }
}

fn catalogue(skills: impl IntoIterator<Item = Skill>) -> SkillCatalogue {
    let mut catalogue = SkillCatalogue::new("skills".to_owned());
    for skill in skills {
        catalogue.add(skill).unwrap();
    }
    catalogue
}

#[rstest]
#[case::plain("name: pdf\ndescription: Reads PDF files.", "Reads PDF files.")]
#[case::quoted("name: 'pdf'\ndescription: \"Use it: always # really\"", "Use it: always # really")]
#[case::single_quoted("name: pdf\ndescription: 'It''s for PDF'", "It's for PDF")]
#[case::folded("name: pdf\ndescription: >-\n  Reads\n  PDF files.", "Reads PDF files.")]
#[case::literal(
    "description: |\n  Reads\n    PDF files.\n\n  Writes none.\nname: pdf",
    "Reads PDF files. Writes none."
)]
#[case::over_two_lines("name: pdf\ndescription: Reads\n  PDF files.", "Reads PDF files.")]
#[case::other_keys(
    "name: pdf\nlicense: MIT\nmetadata:\n  author: ann\n  tags: [a, b]\nallowed-tools: Bash(git:*) Read\ndescription: Reads.",
    "Reads."
)]
#[case::remarks("# mine\nname: pdf # so it is\ndescription: Reads.", "Reads.")]
#[case::another_script("name: pdf\ndescription: PDF 파일을 읽는다", "PDF 파일을 읽는다")]
#[case::control_characters("name: pdf\ndescription: \"a\\u001b[2J\\nb\\u2028c\\u0085d\\te\"", "a [2J b c d e")]
fn a_head_gives_its_name_and_its_description(#[case] head: &str, #[case] description: &str) {
    let expected = Ok(skill("pdf", description));
    assert_eq!(Skill::parse("pdf", &file(head)), expected);
    assert_eq!(Skill::parse("pdf", &file(head).replace('\n', "\r\n")), expected, "with Windows line breaks");
    assert_eq!(Skill::parse("pdf", &format!("\u{feff}{}", file(head))), expected, "with a byte order mark");
}

#[rstest]
#[case::empty("", "does not begin with a line `---`")]
#[case::no_head("# PDF\n\nname: pdf\n", "does not begin with a line `---`")]
#[case::later("\n---\nname: pdf\ndescription: d\n---\n", "does not begin with a line `---`")]
#[case::open("---\nname: pdf\ndescription: d\n", "has no second line `---`")]
#[case::cut("---\nname: pdf\ndescription: d\n--", "has no second line `---`")]
#[case::nothing_in_it("---\n---\n", "has no `name`")]
#[case::no_name("---\ndescription: d\n---\n", "has no `name`")]
#[case::null("---\nname: ~\ndescription: d\n---\n", "has no `name`")]
#[case::no_description("---\nname: pdf\n---\n", "has no `description`")]
#[case::blank_description("---\nname: pdf\ndescription: \" \\n \"\n---\n", "has no `description`")]
#[case::colon(
    "---\nname: pdf\ndescription: Use it: always\n---\n",
    "line 3, column 20; quote a text that contains a colon"
)]
#[case::tab("---\nname: pdf\n\tdescription: d\n---\n", "found a tab")]
#[case::list("---\n- pdf\n---\n", "expected mapping start")]
#[case::a_list_as_name("---\nname: [pdf]\ndescription: d\n---\n", "expected string scalar")]
#[case::twice("---\nname: pdf\nname: pdf\ndescription: d\n---\n", "duplicate mapping key: name")]
#[case::upper("---\nname: PDF\ndescription: d\n---\n", "has the name \"PDF\"; a name has 1 to 64")]
#[case::up("---\nname: ../pdf\ndescription: d\n---\n", "has the name \"../pdf\"")]
#[case::hyphen_first("---\nname: -pdf\ndescription: d\n---\n", "has the name \"-pdf\"")]
#[case::hyphen_last("---\nname: pdf-\ndescription: d\n---\n", "has the name \"pdf-\"")]
#[case::two_hyphens("---\nname: p--df\ndescription: d\n---\n", "has the name \"p--df\"")]
#[case::new_line("---\nname: \"pdf\\nx\"\ndescription: d\n---\n", "has the name \"pdf\\nx\"")]
#[case::elsewhere("---\nname: word\ndescription: d\n---\n", "\"word\" but is in the folder \"pdf\"")]
fn a_broken_one_says_what_is_wrong(#[case] text: &str, #[case] says: &str) {
    let problem = Skill::parse("pdf", text).unwrap_err().to_string();
    assert!(problem.contains(says), "{problem}");
    assert!(!problem.contains('\n'), "{problem}");
}

#[test]
fn names_and_descriptions_have_their_longest() {
    let of = |name: &str, description: &str| {
        Skill::parse(name, &file(&format!("name: {name}\ndescription: {description}"))).map(drop)
    };
    let name = "a1-".repeat(21) + "b";
    assert_eq!((name.len(), of(&name, "d")), (64, Ok(())));
    let longer = name + "b";
    assert_eq!(of(&longer, "d"), Err(SkillError::InvalidName(longer.clone())));
    assert_eq!(of("pdf", &"é".repeat(1024)), Ok(()), "characters, not bytes");
    assert_eq!(of("pdf", &"é".repeat(1025)), Err(SkillError::DescriptionTooLong(1025)));
    assert_eq!(of("123", "true"), Ok(()), "a name may look like a number in YAML");
}

#[test]
fn the_problem_of_a_broken_skill_is_short() {
    let long = "y".repeat(1000);
    for head in [format!("name: {long}"), format!("{long}: 1\n{long}: 2")] {
        let problem = Skill::parse("pdf", &file(&head)).unwrap_err().to_string();
        assert!(problem.len() < 400 && problem.contains("yyy"), "{problem}");
    }
}

/// The parser refuses both early: the first has 60,000 levels, the second 10^9 values.
#[rstest]
#[case::deep("[".repeat(60_000))]
#[case::large({
    let of = |name: char, before: &str| format!("\n  {name}: &{name} [{}]", [before; 10].join(", "));
    let levels = "bcdefghi".chars().map(|name| of(name, &format!("*{}", char::from(name as u8 - 1))));
    of('a', "x") + &levels.collect::<String>()
})]
fn a_head_cannot_make_its_reader_work_for_long(#[case] value: String) {
    let text = file(&format!("name: pdf\ndescription: d\nmetadata: {value}"));
    assert!(matches!(Skill::parse("pdf", &text), Err(SkillError::InvalidYaml(_))));
}

#[test]
fn the_section_stands_behind_the_prompt_with_a_line_for_each_skill() {
    let skills = [skill("words", "Writes Word files."), skill("pdf", "Reads PDF files.")];
    assert_eq!(
        catalogue(skills.clone()).append_to_prompt("You are careful.", "read_file"),
        "You are careful.\n\n# Skills\n\nA skill is a folder with instructions for one kind of task. Before you do what a skill below \
         is for, read its SKILL.md with the tool `read_file` and follow it; files that it names are in its folder, \
         skills/NAME.\n\n- pdf: Reads PDF files. (skills/pdf/SKILL.md)\n- words: Writes Word files. (skills/words/SKILL.md)"
    );
    assert!(catalogue(skills).append_to_prompt(" \n", "shell").starts_with("# Skills"), "a blank prompt is dropped");
    assert_eq!(catalogue([]).append_to_prompt("You are careful.", "read_file"), "You are careful.");
}

#[test]
fn a_section_has_its_largest() {
    let long = |number: usize| skill(&format!("s{number:03}"), &"x".repeat(MAX_DESCRIPTION_CHARS));
    let mut catalogue = SkillCatalogue::new("skills".to_owned());
    let taken = (0..100).take_while(|number| catalogue.add(long(*number)).is_ok()).count();
    assert_eq!(taken, 31, "32 KiB of lines");
    assert!(catalogue.append_to_prompt("", "read_file").len() < MAX_SECTION_BYTES + 400);
    let mut catalogue = SkillCatalogue::new("skills".to_owned());
    let taken = (0..100).take_while(|number| catalogue.add(skill(&format!("s{number}"), "d")).is_ok()).count();
    assert_eq!((taken, catalogue.names().count()), (MAX_SKILLS, MAX_SKILLS));
}

proptest! {
    /// Any file is either refused or gives exactly one line of the section.
    #[test]
    fn no_text_breaks_the_form_of_the_section(description in "\\PC{0,40}|(?s).{0,40}", tail in "(?s).{0,40}") {
        let quoted = serde_json::to_string(&description).unwrap();
        for text in [file(&format!("name: pdf\ndescription: {quoted}")), file(&tail), format!("---\n{tail}"), tail] {
            let Ok(skill) = Skill::parse("pdf", &text) else { continue };
            let prompt = catalogue([skill]).append_to_prompt("", "read_file");
            let lines: Vec<&str> = prompt.lines().collect();
            prop_assert_eq!(lines.len(), 5);
            prop_assert!(lines[4].starts_with("- pdf: ") && lines[4].ends_with(" (skills/pdf/SKILL.md)"));
            prop_assert!(!lines[4].chars().any(char::is_control));
        }
    }

    /// The order in which a folder is read does not matter.
    #[test]
    fn the_same_skills_are_the_same_bytes(mut names in proptest::collection::hash_set("[a-z]{1,8}", 1..20)) {
        let of = |names: &mut dyn Iterator<Item = String>| {
            catalogue(names.map(|name| skill(&name, "d"))).append_to_prompt("p", "read_file")
        };
        let sorted: std::collections::BTreeSet<String> = names.iter().cloned().collect();
        prop_assert_eq!(of(&mut names.drain()), of(&mut sorted.into_iter()));
    }
}
