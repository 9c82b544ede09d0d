// Runs scenarios of the conformance tests against an MCP endpoint that needs a token: the tests cannot send one, so a
// proxy in this process adds it. Prints a line of JSON for each scenario, with the checks that did not succeed.
//
// Environment: QUELL_TEST_MCP, QUELL_TEST_WRITER. Arguments: `VERSION:SCENARIO` each.

import { execFile } from 'node:child_process';
import http from 'node:http';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

const target = new URL(process.env.QUELL_TEST_MCP);
const proxy = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: `Bearer ${process.env.QUELL_TEST_WRITER}` };
  const { method, url: path } = request;
  const onward = http.request({ host: target.hostname, port: target.port, method, path, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    response.flushHeaders();
    answer.pipe(response);
    answer.on('error', () => response.destroy());
  });
  onward.on('error', () => response.destroy());
  response.on('close', () => onward.destroy());
  request.pipe(onward);
});
await new Promise((resolve) => proxy.listen(0, '127.0.0.1', resolve));
const url = `http://127.0.0.1:${proxy.address().port}${target.pathname}`;
const packages = dirname(createRequire(import.meta.url).resolve('@modelcontextprotocol/conformance/package.json'));

for (const item of process.argv.slice(2)) {
  const [version, scenario] = item.split(':');
  const args = [join(packages, 'dist/index.js'), 'server', '--url', url, '--scenario', scenario, '--verbose'];
  if (version !== 'extension') args.push('--spec-version', version);
  const { stdout, stderr } = await new Promise((resolve) =>
    execFile(process.execPath, args, { maxBuffer: 1 << 26 }, (_, stdout, stderr) => resolve({ stdout, stderr })));
  const checks = parseChecks(stdout + stderr);
  const failed = checks.filter((check) => !['SUCCESS', 'INFO', 'SKIPPED'].includes(check.status));
  const problems = failed.map(({ id, status, errorMessage }) => ({ id, status, errorMessage }));
  console.log(JSON.stringify({ version, scenario, checks: checks.length, problems, output: checks.length ? undefined : stdout + stderr }));
}
proxy.close();
proxy.closeAllConnections();

/** The checks are printed as a list of JSON, between other lines. */
function parseChecks(output) {
  for (let start = output.indexOf('\n['); start >= 0; start = output.indexOf('\n[', start + 1)) {
    for (let end = output.lastIndexOf(']'); end > start; end = output.lastIndexOf(']', end - 1)) {
      try {
        const checks = JSON.parse(output.slice(start, end + 1));
        if (Array.isArray(checks)) return checks;
      } catch {
        // Other output follows the list.
      }
    }
  }
  return [];
}
