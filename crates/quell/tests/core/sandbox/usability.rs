//! Usual work in the default mode, with nothing opened.

use super::*;

/// True if this program is in the search path; says so if not.
pub(super) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|place| place.join(name).is_file());
    if !found {
        announce_skip(&format!("there is no {name}"));
    }
    found
}

const GIT: &str = "git init -q a && cd a && git config user.name n && git config user.email n@example.org && \
                   echo 1 > f && git add . && git commit -qm one && git checkout -qb b && echo 2 > f && git commit -qam two && \
                   git checkout -q - && git merge -q b && git worktree add -q ../w b && git clone -q . ../c && \
                   [ \"$(git -C ../c log --format=%s | head -1)\" = two ] && [ -z \"$(git status --short)\" ]";
const MAKE: &str =
    "printf 'int main(void) { return 0; }' > m.c && printf 'm: m.c\\n\\tcc -o m m.c\\n' > Makefile && make && ./m";
const PYTHON: &str = "python3 -m venv v && v/bin/python -c 'import sqlite3, multiprocessing as m; m.Lock(); \
                      sqlite3.connect(\"d\").execute(\"create table t(a)\")'";
const PIP: &str = "python3 - <<'END' && python3 -m venv v && v/bin/pip install -q --no-index ./p-1-py3-none-any.whl && v/bin/python -c 'import p'
import zipfile
with zipfile.ZipFile('p-1-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('p.py', '')
    wheel.writestr('p-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: p\\nVersion: 1\\n')
    wheel.writestr('p-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('p-1.dist-info/RECORD', '')
END
";
const NPM: &str = "npm init -y >/dev/null && npm pkg set scripts.greet='echo greeted' && npm run -s greet | grep -q greeted && \
                   mkdir l && cd l && npm init -y >/dev/null && cd .. && npm install --offline --no-audit --no-fund ./l";
const PROCESSES: &str = "(sleep 300 & echo $!) > p && kill $(cat p) && timeout 5 sh -c 'trap : TERM; ps >/dev/null' && nice true && \
                         mkfifo q && (echo x > q & cat q) && flock f true && mktemp && exec 3<>/dev/ptmx";

#[rstest]
#[case::git("git", GIT)]
#[case::make("cc", MAKE)]
#[ignore = "full: seconds in a package manager"]
#[case::python("python3", PYTHON)]
#[ignore = "full: seconds in a package manager"]
#[case::pip("python3", PIP)]
#[ignore = "full: seconds in a package manager"]
#[case::npm("npm", NPM)]
#[case::processes("flock", PROCESSES)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usual_work_needs_no_permission(
    #[case] program: &str,
    #[case] script: &str,
    #[values(SandboxUser::Root, SandboxUser::Ordinary)] user: SandboxUser,
) {
    if !has_program(program) {
        return;
    }
    let Some(test) = SandboxDaemon::start(user, "").await else { return };
    let (told, _) = test.run_command("s", &format!("set -e\n{script}\necho works")).await;
    assert!(told.contains("works"), "{told}");
}
