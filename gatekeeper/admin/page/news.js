// What somebody who does not see the page has to hear, in few words.

import { $, text } from './dom.js';
import { number } from './format.js';

let failed = null;
let connected = null;
let denied = null;

// drawNews says what is new since it was last called.
export function drawNews(state) {
  const now = state.blades.filter((b) => b.status === 'failed').map((b) => b.name);
  const news = [];
  if (connected !== null && connected !== state.status.switch.connected) news.push(`The switch is ${connected ? 'lost' : 'connected'}.`);
  if (failed) {
    for (const name of now.filter((n) => !failed.includes(n))) news.push(`Blade ${name} has failed.`);
    for (const name of failed.filter((n) => !now.includes(n))) news.push(`Blade ${name} is back.`);
  }
  const sum = state.status.counters.denied;
  if (denied !== null && sum > denied) news.push(`Denied accesses: ${number(sum - denied)}.`);
  failed = state.blades.length ? now : failed;
  connected = state.status.switch.connected;
  denied = sum;
  if (news.length) text($('#news'), news.join(' '));
}
