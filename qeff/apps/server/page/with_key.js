// Does something that may need the server's API key: asks the reader for it when it is wanted.

import { hasKey, Problem } from "./api.js";
import { askKey } from "./dialogs.js";

let asking = null; // one question at a time, whoever needs the key

export async function withKey(task) {
  while (true) {
    try {
      return await task();
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 401) throw error;
      asking ??= askKey(hasKey() ? `The key was refused. ${error.message}` : error.message).finally(() => {
        asking = null;
      });
      if (!(await asking)) throw error;
    }
  }
}
